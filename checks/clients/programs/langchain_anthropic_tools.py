"""langchain-anthropic: text, streams, usage, bind_tools and structured output."""

import sys
from typing import Literal

import pydantic
from langchain_anthropic import ChatAnthropic

from checks import assert_arguments, run

model = ChatAnthropic(
    base_url=sys.argv[1], api_key="none", model="target", max_tokens=200, max_retries=0
)


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Oslo"]
    days: Literal[1, 2, 3]


def invoke() -> None:
    answer = model.invoke("Hello", max_tokens=8)
    assert answer.content
    assert answer.usage_metadata["input_tokens"] > 0


def stream() -> None:
    chunks = list(model.stream("Hello", max_tokens=8))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert whole.content
    assert whole.usage_metadata["input_tokens"] > 0


def bind_tools() -> None:
    bound = model.bind_tools([Weather], tool_choice="any", strict=True)
    assert_arguments(bound.invoke("Weather in Paris?").tool_calls[0]["args"])


def structured_output() -> None:
    structured = model.with_structured_output(Weather)
    assert isinstance(structured.invoke("Weather in Paris?"), Weather)


run((invoke, stream, bind_tools, structured_output))
