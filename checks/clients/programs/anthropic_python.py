"""anthropic for Python: messages, streams, tools, thinking blocks, counts and the tool runner."""

import sys

import anthropic
from anthropic import beta_tool

from checks import MESSAGES, SCHEMA, assert_arguments, run

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
MODEL = "target"
TOOL = {"name": "get_weather", "description": "The weather.", "input_schema": SCHEMA}
CALL = {"tools": [TOOL | {"strict": True}], "tool_choice": {"type": "any"}}


def create() -> None:
    answer = client.messages.create(model=MODEL, max_tokens=8, messages=MESSAGES, system="Be brief")
    assert answer.content[0].text
    assert answer.stop_reason in ("max_tokens", "end_turn")
    assert answer.usage.output_tokens <= 8


def stream() -> None:
    with client.messages.stream(model=MODEL, max_tokens=8, messages=MESSAGES) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text == final.content[0].text
    assert final.usage.output_tokens > 0


def count_tokens() -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=MESSAGES, tools=[TOOL])
    answer = client.messages.create(model=MODEL, max_tokens=1, messages=MESSAGES, tools=[TOOL])
    used = answer.usage
    assert counted.input_tokens == used.input_tokens + (used.cache_read_input_tokens or 0)


def tools() -> None:
    answer = client.messages.create(model=MODEL, max_tokens=200, messages=MESSAGES, **CALL)
    assert answer.stop_reason == "tool_use"
    assert_arguments(answer.content[0].input)


def tools_streamed() -> None:
    with client.messages.stream(model=MODEL, max_tokens=200, messages=MESSAGES, **CALL) as events:
        assert_arguments(events.get_final_message().content[0].input)


def tool_result() -> None:
    call = client.messages.create(model=MODEL, max_tokens=200, messages=MESSAGES, **CALL)
    result = {"type": "tool_result", "tool_use_id": call.content[0].id, "content": "sun"}
    messages = [
        *MESSAGES,
        {"role": "assistant", "content": call.content},
        {"role": "user", "content": [result]},
    ]
    answer = client.messages.create(model=MODEL, max_tokens=8, messages=messages, tools=[TOOL])
    assert answer.type == "message"


def tool_runner() -> None:
    """Begins with a thread, which is refused, and goes on with whole requests."""

    @beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sun in {city}"

    runner = client.beta.messages.tool_runner(
        model=MODEL, max_tokens=60, messages=MESSAGES, tools=[get_weather], max_iterations=2
    )
    assert runner.until_done().usage.output_tokens > 0


def error() -> None:
    found = ""
    try:
        client.messages.create(model="none", max_tokens=8, messages=MESSAGES)
    except anthropic.NotFoundError as caught:
        found = caught.body["error"]["type"]
    assert found == "not_found_error", found


run((create, stream, count_tokens, tools, tools_streamed, tool_result, tool_runner, error))
