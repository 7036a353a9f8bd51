"""instructor: its modes TOOLS, TOOLS_STRICT and JSON_SCHEMA."""

import sys
from typing import Literal

import instructor
import openai
import pydantic

from checks import MESSAGES, run

base = openai.OpenAI(base_url=f"{sys.argv[1]}/v1", api_key="none", max_retries=0)


class Weather(pydantic.BaseModel):
    """The weather of a city.

    Its schema permits no other properties, of which a tiny model writes any number.
    """

    model_config = pydantic.ConfigDict(extra="forbid")

    city: Literal["Paris", "Oslo"]
    days: Literal[1, 2, 3]


def tools_strict() -> None:
    _assert_parsed(instructor.Mode.TOOLS_STRICT)


def tools() -> None:
    _assert_parsed(instructor.Mode.TOOLS)


def json_schema() -> None:
    _assert_parsed(instructor.Mode.JSON_SCHEMA)


def _assert_parsed(mode: instructor.Mode) -> None:
    client = instructor.from_openai(base, mode=mode)
    found = client.chat.completions.create(
        model="target", messages=MESSAGES, response_model=Weather, max_retries=0, max_tokens=800
    )
    assert isinstance(found, Weather)


run((tools_strict, tools, json_schema))
