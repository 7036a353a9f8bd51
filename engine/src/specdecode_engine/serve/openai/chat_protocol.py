"""Body of POST /v1/chat/completions: messages, tools and the fields that only chat has."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from specdecode_engine.serve.errors import field_error, from_validation
from specdecode_engine.serve.openai.protocol import GenerationBody
from specdecode_engine.serve.openai.refused_fields import CHAT, THINKING, check_refused
from specdecode_engine.serve.openai.tools import ToolCall, ToolFields

# Parameters of transformers' `apply_chat_template` that are not variables of the template, or that
# the body has as fields of their own.
RESERVED_VARIABLES = frozenset(
    {
        "self", "conversation", "conversations", "messages", "tools", "chat_template",
        "add_generation_prompt", "continue_final_message", "tokenize", "sanitize_control_tokens",
        "padding", "truncation", "max_length", "return_tensors", "return_dict",
        "return_assistant_tokens_mask", "tokenizer_kwargs", "kwargs",
    }
)  # fmt: skip

ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _text(content: object) -> object:
    if not isinstance(content, list):
        return content
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
            raise ValueError("only parts of type text are supported; remove the others")
        if not isinstance(part.get(part["type"]), str):
            raise ValueError("a part of type text needs a string in its field text")
    return "\n".join(part[part["type"]] for part in content)


class TextPart(BaseModel):
    """A part of a message's content, in the OpenAPI document; `type` names the other field."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None


def _check_variables(variables: dict[str, Any]) -> dict[str, Any]:
    reserved = sorted(RESERVED_VARIABLES.intersection(variables))
    if reserved:
        raise ValueError(f"{reserved[0]} is not a variable of chat templates; remove it")
    return variables


def _refuse_functions(value: object) -> object:
    if value:
        raise ValueError("it is deprecated and not supported; use tools and tool_choice")
    return None


class ChatMessage(BaseModel):
    """One message of a conversation. The chat template also receives fields not listed here."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | None,
        BeforeValidator(_text, json_schema_input_type=str | list[TextPart] | None),
    ] = None
    tool_calls: Annotated[list[ToolCall], Field(fail_fast=True)] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise field_error("content", f"a message of role {self.role} needs content")
        if self.tool_calls and self.role != "assistant":
            raise field_error("tool_calls", f"a message of role {self.role} has none; remove them")
        return self


class ThinkingMode(BaseModel):
    """Field `thinking`: whether the model reasons, as in SGLang and in APIs of several models."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]

    @model_validator(mode="after")
    def _check_refused(self) -> Self:
        check_refused(self.model_extra, THINKING)
        return self


class ChatBody(ToolFields, GenerationBody):
    """Body of POST /v1/chat/completions."""

    prompt_field = "messages"
    refusals = CHAT
    parameters_field: ClassVar[str] = "function.parameters"  # of a tool, in errors
    format_field: ClassVar[str] = ""  # in errors, what another API calls response_format

    # A list with very many errors would hold the interpreter lock while they are collected.
    messages: Annotated[list[ChatMessage], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    reasoning_effort: ReasoningEffort | None = None
    thinking: ThinkingMode | None = None
    include_reasoning: bool | None = None
    return_token_ids: bool | None = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, AfterValidator(lambda kwargs: kwargs and _check_variables(kwargs))
    ] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    functions: Annotated[object, AfterValidator(_refuse_functions)] = None
    function_call: Annotated[object, AfterValidator(_refuse_functions)] = None

    @classmethod
    def of(cls, other: GenerationBody, fields: dict[str, Any]) -> Self:
        """Return the body with the same meaning as one of another API, or raise `HttpError`.

        Args:
            fields: those of chat that differ; the ones that all APIs share are taken over.
        """
        shared = GenerationBody.model_fields.keys() & other.model_fields_set
        document = {name: getattr(other, name) for name in shared} | fields
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            raise from_validation(error, document) from None

    @model_validator(mode="after")
    def _check_available(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            raise field_error("top_logprobs", "it needs logprobs: true")
        if self.echo:
            raise field_error("echo", "only /v1/completions returns the prompt; remove it")
        if self.continue_final_message and self.add_generation_prompt is not False:
            raise field_error("continue_final_message", "it needs add_generation_prompt: false")
        return self

    @model_validator(mode="after")
    def _check_tool_choice(self) -> Self:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise field_error(
                "tools", f"the function {twice[:80]} is there twice; rename or remove one"
            )
        wanted = self.tool_choice
        if not names and self.requires_calls:
            raise field_error(
                "tool_choice", "it requires a call and there are no tools; send tools"
            )
        for named in wanted.names if wanted else ():
            if named not in names:
                raise field_error("tool_choice", f"it names {named[:80]}, which is not in tools")
        return self

    @property
    def requested_tokens(self) -> int | None:
        new = self.max_completion_tokens
        return self.max_tokens if new is None else new

    @property
    def length_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def returns_token_ids(self) -> bool:
        return bool(self.return_token_ids)

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
