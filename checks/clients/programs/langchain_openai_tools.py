"""langchain-openai: bind_tools, structured output by tools and by schema, streams and batches."""

import sys
from typing import Literal

import pydantic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from checks import assert_arguments, run

model = ChatOpenAI(
    base_url=f"{sys.argv[1]}/v1", api_key="none", model="target", max_tokens=200, max_retries=0
)


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: Literal["Paris", "Oslo"]
    days: Literal[1, 2, 3]


@tool(args_schema=Weather)
def get_weather(city: str, days: int) -> str:
    """The weather of a city."""
    return f"{city} {days}"


def invoke() -> None:
    assert model.invoke("Hello", max_tokens=8).content


def batch() -> None:
    assert len(model.batch(["a", "b", "c"], max_tokens=8)) == 3


def stream() -> None:
    assert "".join(chunk.content for chunk in model.stream("Hello", max_tokens=8))


def bind_tools() -> None:
    bound = model.bind_tools([get_weather], tool_choice="required", strict=True)
    assert_arguments(bound.invoke("Weather in Paris?").tool_calls[0]["args"])


def bind_tools_streamed() -> None:
    bound = model.bind_tools([get_weather], tool_choice="get_weather", strict=True)
    chunks = list(bound.stream("Weather in Paris?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert_arguments(whole.tool_calls[0]["args"])


def structured_output_by_tools() -> None:
    structured = model.with_structured_output(Weather, method="function_calling", strict=True)
    assert isinstance(structured.invoke("Weather in Paris?"), Weather)


def structured_output_by_schema() -> None:
    structured = model.with_structured_output(Weather, method="json_schema")
    assert isinstance(structured.invoke("Weather in Paris?"), Weather)


run(
    (
        invoke, batch, stream, bind_tools, bind_tools_streamed, structured_output_by_tools,
        structured_output_by_schema,
    )
)  # fmt: skip
