"""Body of POST /v1/messages and of /v1/messages/count_tokens."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specdecode_engine.serve.anthropic.messages_blocks import InputMessage, Texts
from specdecode_engine.serve.anthropic.messages_refusals import (
    MESSAGES,
    MESSAGES_TOOL,
    NOT_SHARED,
    OUTPUT_CONFIG,
)
from specdecode_engine.serve.errors import SHOWN_VALUE_CHARS, field_error
from specdecode_engine.serve.openai.constraints import ResponseFormat
from specdecode_engine.serve.openai.protocol import GenerationBody, Stops
from specdecode_engine.serve.openai.refused_fields import (
    STRUCTURED_OUTPUTS,
    check_constraint,
    check_refused,
)
from specdecode_engine.serve.openai.tool_choice import MessagesChoice
from specdecode_engine.serve.openai.tools import FunctionDefinition, FunctionName, FunctionTool

THREAD_UNSUPPORTED: Final = "thread_unsupported_request"
"""Anthropic's code, after which its SDKs send whole conversations."""
EFFORTS = Literal["low", "medium", "high", "xhigh", "max"]


def _check_tool_type(tool: object) -> object:
    """Refuse tools that a server runs, or that have a schema which only a model of theirs knows."""
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(kind, str) and kind != "custom":
        raise field_error(
            "type",
            f"tools of type {kind[:SHOWN_VALUE_CHARS]!r} are not supported; offer a tool of type "
            "custom, with an input_schema, that your program runs",
        )
    return tool


class MessagesTool(BaseModel):
    """One entry of `tools`: a function whose input fits a JSON schema."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    type: Literal["custom"] | None = None
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    @model_validator(mode="after")
    def _check_refused(self) -> Self:
        check_refused(self.model_extra, MESSAGES_TOOL)
        return self

    def as_function(self) -> FunctionTool:
        function = FunctionDefinition(
            name=self.name,
            description=self.description,
            parameters=self.input_schema,
            strict=self.strict,
        )
        return FunctionTool(type="function", function=function)


class Thinking(BaseModel):
    """Field `thinking`: whether the model reasons. `budget_tokens` does not limit it."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    display: str | None = None


class OutputFormat(BaseModel):
    """`output_config.format`: the text is JSON that fits the schema, or the request is refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    type: Literal["json_schema"]
    content: dict[str, Any] = Field(alias="schema")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        extra = {name: each for name, each in (self.model_extra or {}).items() if name != "name"}
        check_constraint(extra, STRUCTURED_OUTPUTS)
        return self

    def as_response_format(self) -> ResponseFormat:
        fields = {"type": self.type, "schema": self.content, "strict": True}
        return ResponseFormat.model_validate(fields)


class OutputConfig(BaseModel):
    """Field `output_config`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    effort: EFFORTS | None = None
    format: OutputFormat | None = None

    @model_validator(mode="after")
    def _check_refused(self) -> Self:
        check_refused(self.model_extra, OUTPUT_CONFIG)
        return self


def _refuse_thread(value: object) -> object:
    if value is not None:
        message = "threads are not stored here; send the whole conversation, without thread"
        raise field_error("", message, THREAD_UNSUPPORTED)
    return None


class CountTokensBody(GenerationBody):
    """Body of POST /v1/messages/count_tokens: one of messages, whose `max_tokens` may be absent."""

    prompt_field = "messages"
    refusals = MESSAGES

    messages: Annotated[list[InputMessage], Field(min_length=1, fail_fast=True)]
    system: Texts | None = None
    stop: Annotated[Stops | None, Field(validation_alias="stop_sequences")] = None
    tools: (
        Annotated[
            list[Annotated[MessagesTool, BeforeValidator(_check_tool_type)]],
            Field(max_length=1024, fail_fast=True),
        ]
        | None
    ) = None
    tool_choice: MessagesChoice = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    thread: Annotated[object, AfterValidator(_refuse_thread)] = None

    @model_validator(mode="after")
    def _check_supported(self) -> Self:
        for name in NOT_SHARED:
            if getattr(self, name) not in (None, False) and (name, self.n) != ("n", 1):
                remedy = "send output_config.format" if name == "response_format" else "remove it"
                raise field_error(name, f"it is not supported in messages; {remedy}")
        return self

    @property
    def chat_tools(self) -> list[FunctionTool] | None:
        """The tools as chat has them."""
        return None if self.tools is None else [tool.as_function() for tool in self.tools]

    @property
    def num_logprobs(self) -> int | None:
        return None


class MessagesBody(CountTokensBody):
    """Body of POST /v1/messages."""

    max_tokens: Annotated[int, Field(ge=1, lt=2**31)]
