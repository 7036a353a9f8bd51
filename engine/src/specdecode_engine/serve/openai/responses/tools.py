"""Tools of POST /v1/responses: functions, custom tools, namespaces of both, and a search.

Chat offers functions alone. A custom tool, which takes a text, is a function with the parameter
`input` there; a tool of a namespace has the name of both, as in vLLM 0.33; a search, which the
engine cannot run, is left out.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import from_json

from specdecode_engine.serve.errors import field_error
from specdecode_engine.serve.openai.refused_fields import FLAT_TOOL, check_refused
from specdecode_engine.serve.openai.tools import (
    MAX_NAME_CHARS,
    FunctionDefinition,
    FunctionName,
    FunctionTool,
)

MAX_TOOLS = 1024
_INPUT = "input"
_CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {_INPUT: {"type": "string"}},
    "required": [_INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class CalledTool:
    """What a function of chat is called in Responses."""

    name: str
    namespace: str | None = None
    is_custom: bool = False

    @property
    def function_name(self) -> str:
        return self.name if self.namespace is None else f"{self.namespace}__{self.name}"


class _Tool(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="allow")


class FlatFunction(FunctionDefinition):
    """A function, without an object of its own."""

    type: Literal["function"]

    @model_validator(mode="after")
    def _check_callers(self) -> Self:
        check_refused(self.model_extra, FLAT_TOOL)
        return self


class InputFormat(_Tool):
    """What the input of a custom tool looks like; the model reads a grammar in the prompt."""

    type: Literal["text", "grammar"]
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(_Tool):
    """A tool whose input is a text."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: InputFormat | None = None

    @property
    def whole_description(self) -> str | None:
        """The description with the grammar of the input."""
        if self.format is None or not self.format.definition:
            return self.description
        grammar = f"The input matches this grammar ({self.format.syntax or 'lark'}):"
        return "\n\n".join(filter(None, (self.description, grammar, self.format.definition)))


class WebSearch(BaseModel):
    """A search by OpenAI's servers, which clients offer in every request without being asked."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: Literal[
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    ]


def _tool_type(tool: object) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else getattr(tool, "type", None)
    return "web_search" if str(kind).startswith("web_search") else str(kind)


_NamedTool = Annotated[
    Annotated[FlatFunction, Tag("function")] | Annotated[CustomTool, Tag("custom")],
    Discriminator(
        _tool_type,
        custom_error_type="tool_type",
        custom_error_message="its type has to be function or custom; remove the tool",
    ),
]


class Namespace(_Tool):
    """Tools with a name in common."""

    type: Literal["namespace"]
    name: FunctionName
    description: str | None = None
    tools: Annotated[list[_NamedTool], Field(max_length=MAX_TOOLS, fail_fast=True)]

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        for tool in self.tools:
            if len(CalledTool(tool.name, self.name).function_name) > MAX_NAME_CHARS:
                message = f"with {tool.name} it has over {MAX_NAME_CHARS} characters; shorten one"
                raise field_error("name", message)
        return self


ResponsesTool = Annotated[
    Annotated[FlatFunction, Tag("function")]
    | Annotated[CustomTool, Tag("custom")]
    | Annotated[Namespace, Tag("namespace")]
    | Annotated[WebSearch, Tag("web_search")],
    Discriminator(
        _tool_type,
        custom_error_type="tool_type",
        custom_error_message="its type has to be function, custom or namespace (web_search is "
        "left out); the engine runs no tools itself, offer a function or remove the tool",
    ),
]


def chat_tools(tools: Sequence[ResponsesTool]) -> list[FunctionTool]:
    """Return the tools as chat has them."""
    return [
        FunctionTool(type="function", function=_definition(called, tool))
        for called, tool in _offered(tools)
    ]


def called_tools(tools: Sequence[ResponsesTool]) -> dict[str, CalledTool]:
    """Return the tools by the names that chat has for them."""
    return {called.function_name: called for called, _ in _offered(tools)}


def _offered(tools: Sequence[ResponsesTool]) -> Iterator[tuple[CalledTool, _NamedTool]]:
    for tool in tools:
        if isinstance(tool, Namespace):
            for each in tool.tools:
                yield CalledTool(each.name, tool.name, isinstance(each, CustomTool)), each
        elif not isinstance(tool, WebSearch):
            yield CalledTool(tool.name, None, isinstance(tool, CustomTool)), tool


def _definition(called: CalledTool, tool: _NamedTool) -> FunctionDefinition:
    if isinstance(tool, CustomTool):
        return FunctionDefinition(
            name=called.function_name,
            description=tool.whole_description,
            parameters=_CUSTOM_PARAMETERS,
        )
    fields = tool.model_dump(include={*FunctionDefinition.model_fields})
    return FunctionDefinition(**fields | {"name": called.function_name})


def custom_arguments(text: str) -> str:
    """Return the arguments of the function that stands for a custom tool."""
    return json.dumps({_INPUT: text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """Return the input in such arguments, also cut ones; other arguments as they are."""
    try:
        found = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return arguments
    if not isinstance(found, dict) or found.keys() - {_INPUT}:
        return arguments
    text = found.get(_INPUT, "")
    return text if isinstance(text, str) else arguments
