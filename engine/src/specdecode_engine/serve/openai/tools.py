"""Tools of a request and calls in its messages: OpenAI's objects of type `function`."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)
from pydantic_core import from_json

from specdecode_engine.serve.openai.refused_fields import TOOL, WRAPPED_TOOL, check_refused
from specdecode_engine.serve.openai.tool_choice import ChatToolChoice, ToolChoice

MAX_NAME_CHARS = 128
FunctionName = Annotated[
    str, StringConstraints(pattern=rf"^[A-Za-z0-9_.:/-]{{1,{MAX_NAME_CHARS}}}$")
]


class FunctionDefinition(BaseModel):
    """A function that the model may call; `parameters` is a JSON schema of an object."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _check_refused(self) -> Self:
        check_refused(self.model_extra, TOOL)
        return self


class FunctionTool(BaseModel):
    """One entry of `tools`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    type: Literal["function"]
    function: FunctionDefinition

    @model_validator(mode="after")
    def _check_refused(self) -> Self:
        check_refused(self.model_extra, WRAPPED_TOOL)
        return self

    def for_template(self) -> dict[str, object]:
        """Return the tool without unknown fields."""
        known = {*FunctionDefinition.model_fields}
        function = self.function.model_dump(include=known, exclude_none=True)
        return {"type": self.type, "function": function}


def _argument_text(arguments: object) -> object:
    """Return arguments as text: clients also send back an object, or null for none."""
    if isinstance(arguments, dict):
        return json.dumps(arguments, ensure_ascii=False)
    return "" if arguments is None else arguments


ArgumentText = Annotated[
    str,
    BeforeValidator(_argument_text, json_schema_input_type=str | dict[str, Any] | None),
]


class CalledFunction(BaseModel):
    """A call that the model made: `arguments` is JSON text as the model wrote it."""

    model_config = ConfigDict(strict=True, frozen=True)

    name: str
    arguments: ArgumentText = ""

    def for_template(self, *, as_text: bool) -> dict[str, object]:
        """Return the call with its arguments decoded, or as JSON text.

        Without arguments, or with null, it has none. Arguments that are not a JSON object stay
        text: a model may have written anything. So do those with lone surrogates, which no prompt
        could contain.
        """
        text = "{}" if self.arguments.strip() in ("", "null") else self.arguments
        return {"name": self.name, "arguments": text if as_text else self._decoded(text)}

    def _decoded(self, text: str) -> object:
        try:
            decoded = from_json(text, allow_inf_nan=False)
        except ValueError:
            return self.arguments
        return decoded if isinstance(decoded, dict) else self.arguments


class ToolCall(BaseModel):
    """One entry of `tool_calls` in a message of the assistant."""

    model_config = ConfigDict(strict=True, frozen=True)

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction

    def for_template(self, *, as_text: bool) -> dict[str, object]:
        function = self.function.for_template(as_text=as_text)
        return {"id": self.id, "type": self.type, "function": function}


class ToolFields(BaseModel):
    """The fields of tools that a body of chat has."""

    tools: Annotated[list[FunctionTool], Field(max_length=1024, fail_fast=True)] | None = None
    tool_choice: ChatToolChoice = None
    parallel_tool_calls: bool | None = None

    @property
    def requires_calls(self) -> bool:
        """Whether the message has to consist of calls."""
        return self.tool_choice is not None and self.tool_choice.mode == "required"

    @property
    def is_parallel(self) -> bool:
        """Whether the message may contain several calls."""
        choice = self.tool_choice
        return self.parallel_tool_calls is not False and (choice is None or choice.is_parallel)

    @property
    def offered_tools(self) -> tuple[FunctionTool, ...]:
        """The tools that the prompt shows: none with `tool_choice: "none"`."""
        choice = self.tool_choice or ToolChoice("auto")
        if choice.mode == "none":
            return ()
        allowed = choice.allowed
        tools = self.tools or ()
        return tuple(each for each in tools if allowed is None or each.function.name in allowed)
