"""The objects that POST /v1/messages answers with, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from specdecode_engine.serve.openai.response_models import EventSpeculation, SpeculationUsage


class ContentBlock(BaseModel):
    """Text, thinking, or the call of a tool."""

    type: Literal["text", "thinking", "tool_use"]
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class MessagesOutputDetails(BaseModel):
    """Of the generated tokens."""

    thinking_tokens: int


class MessagesUsage(BaseModel):
    """Tokens of a message; those of the prompt are `input_tokens` plus those of the cache."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessagesOutputDetails
    specdecode: SpeculationUsage | None = None


class MessagesResponse(BaseModel):
    """The message of POST /v1/messages."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[ContentBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    usage: MessagesUsage


class MessageEvent(BaseModel):
    """An event of the stream of POST /v1/messages; its other fields depend on the type."""

    model_config = ConfigDict(extra="allow")

    type: str
    speculation: EventSpeculation | None = None


class TokenCount(BaseModel):
    """The response of POST /v1/messages/count_tokens."""

    input_tokens: int


class MessagesErrorDetails(BaseModel):
    """The code of an error, which is that of the other paths."""

    error_code: str


class MessagesErrorFields(BaseModel):
    """Why a request was refused, and what to do."""

    type: Literal[
        "invalid_request_error", "authentication_error", "permission_error", "not_found_error",
        "request_too_large", "rate_limit_error", "api_error", "overloaded_error",
    ]  # fmt: skip
    message: str
    details: MessagesErrorDetails | None = None


class MessagesErrorResponse(BaseModel):
    """An error of the paths of Anthropic's API."""

    type: Literal["error"]
    error: MessagesErrorFields
