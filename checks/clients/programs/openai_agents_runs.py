"""openai-agents: a run by chat and by responses, streamed, and a required tool."""

import asyncio
import sys

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from checks import run

MOST_TOKENS = 1500  # a response that its limit cuts is an error for this client
set_tracing_disabled(True)
called = list[str]()


@function_tool
def get_weather(city: str) -> str:
    """The weather of a city."""
    called.append(city)
    return "sun"


def chat() -> None:
    assert _run(OpenAIChatCompletionsModel).final_output


def responses() -> None:
    assert _run(OpenAIResponsesModel).final_output


def responses_streamed() -> None:
    async def events() -> list[str]:
        result = Runner.run_streamed(_agent(OpenAIResponsesModel), "Hello")
        return [event.type async for event in result.stream_events()]

    assert "raw_response_event" in asyncio.run(events())


def required_tool() -> None:
    for kind in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
        called.clear()
        agent = _agent(kind, tool_choice="required")
        agent.tools = [get_weather]
        agent.tool_use_behavior = "stop_on_first_tool"
        asyncio.run(Runner.run(agent, "What is the weather in Paris?"))
        assert called, kind.__name__


def _agent(kind, **settings) -> Agent:
    """A client is bound to the event loop that uses it first."""
    client = AsyncOpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
    wanted = ModelSettings(store=False, max_tokens=MOST_TOKENS, **settings)
    return Agent(
        name="a", instructions="Be brief", model=kind("target", client), model_settings=wanted
    )


def _run(kind):
    return asyncio.run(Runner.run(_agent(kind), "Hello"))


run((chat, responses, responses_streamed, required_tool))
