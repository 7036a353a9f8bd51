"""The objects that POST /v1/responses answers with, for the OpenAPI document."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from specdecode_engine.serve.openai.response_models import EventSpeculation, SpeculationUsage

ItemStatus = Literal["in_progress", "completed", "incomplete"]


class OutputPart(BaseModel):
    """A part of an item's content; annotations and logprobs are always empty."""

    type: Literal["output_text", "reasoning_text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


class OutputItem(BaseModel):
    """A message, reasoning, or the call of a tool."""

    id: str
    type: Literal["message", "reasoning", "function_call", "custom_tool_call"]
    status: ItemStatus
    role: Literal["assistant"] | None = None
    content: list[OutputPart] | None = None
    summary: list[Any] | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: str | None = None
    input: str | None = None


class InputTokensDetails(BaseModel):
    """Of the prompt's tokens; `cached_tokens` is 0 unless the engine reports it."""

    cached_tokens: int
    cache_write_tokens: int


class OutputTokensDetails(BaseModel):
    """Of the generated tokens."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class ResponsesUsage(BaseModel):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    specdecode: SpeculationUsage


class ResponseFailure(BaseModel):
    """Why a response has failed."""

    code: str
    message: str


class ResponseObject(BaseModel):
    """The response of POST /v1/responses; the other fields repeat the request."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete", "failed"]
    error: ResponseFailure | None
    incomplete_details: dict[str, str] | None
    model: str
    output: list[OutputItem]
    usage: ResponsesUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, str | None]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_p: float | None
    truncation: str


class DeletedResponse(BaseModel):
    """The response of DELETE /v1/responses/{response_id}."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItemList(BaseModel):
    """Items of the conversation before a response; ids are null on an empty page."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseEvent(BaseModel):
    """An event of the stream of POST /v1/responses; its other fields depend on the type."""

    model_config = ConfigDict(extra="allow")

    type: str
    sequence_number: int
    speculation: EventSpeculation | None = None
