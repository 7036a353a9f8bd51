"""Body of POST /v1/chat/completions: messages and the fields that only chat has."""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from specdecode_engine.serve.errors import field_error
from specdecode_engine.serve.openai.protocol import GenerationBody


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


class ChatMessage(BaseModel):
    """One message of a conversation. The chat template also receives fields not listed here."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[
        str | None,
        BeforeValidator(_text, json_schema_input_type=str | list[TextPart] | None),
    ] = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.content is None and self.role != "assistant":
            raise field_error("content", f"a message of role {self.role} needs content")
        return self


class ChatBody(GenerationBody):
    """Body of POST /v1/chat/completions."""

    prompt_field = "messages"

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None

    @model_validator(mode="after")
    def _check_available(self) -> Self:
        if self.tools or self.functions:
            raise ValueError("tools are not available yet; remove tools and functions")
        if self.top_logprobs is not None and not self.logprobs:
            raise field_error("top_logprobs", "it needs logprobs: true")
        return self

    @property
    def requested_tokens(self) -> int | None:
        new = self.max_completion_tokens
        return self.max_tokens if new is None else new

    @property
    def length_field(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None
