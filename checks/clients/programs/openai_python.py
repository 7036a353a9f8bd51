"""openai for Python: chat, completions, structured output, tools and responses."""

import sys
from typing import Literal

import openai
import pydantic

from checks import MESSAGES, TOOL, assert_arguments, run

client = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)
MODEL = "target"


class Weather(pydantic.BaseModel):
    city: Literal["Paris", "Oslo"]
    days: Literal[1, 2, 3]


def models() -> None:
    assert MODEL in [model.id for model in client.models.list()]


def chat() -> None:
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=16, seed=1)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= 16


def chat_streamed() -> None:
    options = {"model": MODEL, "messages": MESSAGES, "max_tokens": 16, "seed": 1}
    whole = client.chat.completions.create(**options).choices[0].message.content
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole
    assert chunks[-1].usage.completion_tokens > 0


def completions() -> None:
    answer = client.completions.create(model=MODEL, prompt="Once", max_tokens=8, logprobs=2, n=2)
    assert len(answer.choices) == 2


def parsed_schema() -> None:
    answer = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Weather)
    assert isinstance(answer.choices[0].message.parsed, Weather)


def required_tool() -> None:
    answer = _with_tools("required")
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert_arguments(call.function.arguments)
    assert answer.choices[0].finish_reason == "tool_calls"


def named_tool() -> None:
    answer = _with_tools({"type": "function", "function": {"name": "get_weather"}})
    assert_arguments(answer.choices[0].message.tool_calls[0].function.arguments)


def tool_streamed() -> None:
    with client.chat.completions.stream(
        model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice="required", max_tokens=200
    ) as stream:
        final = stream.get_final_completion()
    assert_arguments(final.choices[0].message.tool_calls[0].function.arguments)


def tool_result() -> None:
    call = _with_tools("required").choices[0].message.tool_calls[0]
    answer = client.chat.completions.create(
        model=MODEL,
        messages=[
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]},
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ],
        tools=[TOOL],
        tool_choice="none",
        max_tokens=16,
    )
    assert answer.choices[0].message.content is not None
    assert not answer.choices[0].message.tool_calls


def responses() -> None:
    answer = client.responses.create(model=MODEL, input="Hello", max_output_tokens=16)
    assert answer.output_text
    assert answer.usage.output_tokens > 0


def responses_streamed() -> None:
    with client.responses.stream(model=MODEL, input="Hello", max_output_tokens=16) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    assert "response.output_text.delta" in kinds


def responses_parsed() -> None:
    answer = client.responses.parse(model=MODEL, input="Weather?", text_format=Weather)
    assert isinstance(answer.output_parsed, Weather)


def responses_tool() -> None:
    tool = {"type": "function"} | TOOL["function"]
    answer = client.responses.create(
        model=MODEL, input="Weather?", tools=[tool], tool_choice="required", max_output_tokens=200
    )
    call = next(item for item in answer.output if item.type == "function_call")
    assert_arguments(call.arguments)


def stored_responses() -> None:
    options = {"model": MODEL, "max_output_tokens": 16, "temperature": 0}
    first = client.responses.create(input="Hello", **options)
    assert client.responses.retrieve(first.id) == first
    second = client.responses.create(input="And?", previous_response_id=first.id, **options)
    whole = [{"role": "user", "content": "Hello"}, *first.output]
    whole.append({"role": "user", "content": "And?"})
    alone = client.responses.create(input=whole, store=False, **options)
    assert second.output_text == alone.output_text
    items = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.role for item in items] == ["user", "assistant", "user"]
    client.responses.delete(first.id)
    code = None
    try:
        client.responses.retrieve(first.id)
    except openai.NotFoundError as error:
        code = error.code
    assert code == "response_not_found"


def _with_tools(choice: object) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=[TOOL], tool_choice=choice, max_tokens=200
    )


run(
    (
        models, chat, chat_streamed, completions, parsed_schema, required_tool, named_tool,
        tool_streamed, tool_result, responses, responses_streamed, responses_parsed, responses_tool,
        stored_responses,
    )
)  # fmt: skip
