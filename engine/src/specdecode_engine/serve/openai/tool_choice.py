"""The field `tool_choice`: one meaning for the forms of chat, Responses and Anthropic's clients."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict

ChoiceMode = Literal["none", "auto", "required"]
_CHAT_FORMS = (
    'send "none", "auto", "required", {"type": "function", "function": {"name": …}}, or '
    '{"type": "allowed_tools", "allowed_tools": {"mode": "auto" or "required", "tools": […]}} '
    "with functions of tools"
)
_RESPONSES_FORMS = (
    'send "none", "auto", "required", {"type": "function", "name": …} (or type "custom"), or '
    '{"type": "allowed_tools", "mode": "auto" or "required", "tools": […]} with names of tools'
)

_MESSAGES_FORMS = (
    'send {"type": "auto"}, {"type": "any"}, {"type": "tool", "name": …} or {"type": "none"}, the '
    'first three with "disable_parallel_tool_use" if wanted'
)


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Which tools may be called, and whether one has to be.

    Attributes:
        mode: no call, any message, or calls only.
        named: the only function that may be called; the prompt shows the others too.
        allowed: the functions that the prompt shows; None for all.
        is_parallel: a message may contain several calls.
    """

    mode: ChoiceMode
    named: str | None = None
    allowed: tuple[str, ...] | None = None
    is_parallel: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The functions that it names."""
        return self.allowed or (() if self.named is None else (self.named,))

    def for_responses(self) -> str | dict[str, Any]:
        """Return the form of Responses."""
        if self.named is not None:
            return {"type": "function", "name": self.named}
        if self.allowed is None:
            return self.mode
        tools = [{"type": "function", "name": name} for name in self.allowed]
        return {"type": "allowed_tools", "mode": self.mode, "tools": tools}


class FunctionReference(BaseModel):
    """The name of a function."""

    model_config = ConfigDict(strict=True, frozen=True)

    name: str


class NamedToolChoice(BaseModel):
    """A choice of one function, in the OpenAPI document."""

    type: Literal["function"]
    function: FunctionReference


class ResponsesToolChoice(BaseModel):
    """A choice of one function in Responses, in the OpenAPI document."""

    type: Literal["function"]
    name: str


class AllowedTools(BaseModel):
    """Some of the tools, in the OpenAPI document."""

    mode: Literal["auto", "required"]
    tools: list[NamedToolChoice]


class AllowedToolsChoice(BaseModel):
    """A choice of some of the tools, in the OpenAPI document."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


class ResponsesAllowedTools(BaseModel):
    """A choice of some of the tools in Responses, in the OpenAPI document."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: list[ResponsesToolChoice]


class MessagesToolChoice(BaseModel):
    """A choice of messages, in the OpenAPI document."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


def read_choice(choice: object) -> ToolChoice | None:
    """Return the meaning of a choice; None if it has no known form.

    `any` and `tool` are Anthropic's, and `disable_parallel_tool_use` next to them.
    """
    match choice:
        case ToolChoice():
            return choice
        case "none" | "auto" | "required":
            return ToolChoice(choice)
        case "any":
            return ToolChoice("required")
        case {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}:
            return _allowed(mode, tools)
        case {"type": "allowed_tools", "mode": mode, "tools": tools}:
            return _allowed(mode, tools)
        case {"type": "auto" | "none" | "required" | "any" as mode}:
            return ToolChoice(
                "required" if mode == "any" else mode, is_parallel=_is_parallel(choice)
            )
        case {"type": "function" | "tool"}:
            name, is_parallel = _name(choice), _is_parallel(choice)
            return None if name is None else ToolChoice("required", name, is_parallel=is_parallel)
    return None


def _allowed(mode: object, tools: object) -> ToolChoice | None:
    if mode not in ("auto", "required") or not isinstance(tools, list):
        return None
    names = [_name(tool) for tool in tools]
    if not names or None in names:
        return None
    return ToolChoice("auto" if mode == "auto" else "required", allowed=tuple(filter(None, names)))


def _name(reference: object) -> str | None:
    """Return the name in a reference of chat or of Responses."""
    match reference:
        case {"type": "function", "function": {"name": str(name)}}:
            return name or None
        case {"type": "function" | "tool" | "custom", "name": str(name)}:
            return name or None
    return None


def _is_parallel(choice: object) -> bool:
    return not (isinstance(choice, dict) and choice.get("disable_parallel_tool_use") is True)


def _read(choice: object, forms: str) -> ToolChoice | None:
    found = read_choice(choice)
    if found is None and choice is not None:
        raise ValueError(f"no choice has this form; {forms}")
    return found


def _read_of_responses(choice: object) -> ToolChoice | None:
    match choice:
        case {"type": "custom", "name": str(name)} if name:
            return ToolChoice("required", name)
    return _read(choice, _RESPONSES_FORMS)


_Mode = ChoiceMode | None
ChatToolChoice = Annotated[
    ToolChoice | None,
    BeforeValidator(
        partial(_read, forms=_CHAT_FORMS),
        json_schema_input_type=_Mode | NamedToolChoice | AllowedToolsChoice,
    ),
]
ResponsesChoice = Annotated[
    ToolChoice | None,
    BeforeValidator(
        _read_of_responses,
        json_schema_input_type=_Mode | ResponsesToolChoice | ResponsesAllowedTools,
    ),
]
MessagesChoice = Annotated[
    ToolChoice | None,
    BeforeValidator(
        partial(_read, forms=_MESSAGES_FORMS), json_schema_input_type=MessagesToolChoice | None
    ),
]
