"""The objects that the API answers with, for its OpenAPI document.

Responses are written as plain dictionaries, because every token is a message; a test compares them
with these models.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

FinishReasonText = Literal["stop", "length", "tool_calls", "abort", "error"]


class ErrorDetails(BaseModel):
    """What went wrong; `param` is the field of the body, as in `messages[0].content`."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(BaseModel):
    """OpenAI's error object."""

    error: ErrorDetails


class ChoiceError(BaseModel):
    """Why a choice ended with `finish_reason: "error"`."""

    message: str
    type: str
    code: str


class SpeculationUsage(BaseModel):
    """What speculation did in the call, over all its choices."""

    decode_steps: int
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_pos: list[int]
    accept_length: float | None = Field(description="tokens per choice and decode step")


class EventSpeculation(BaseModel):
    """Of an event, with `return_speculation`: tokens since the event of the choice before it."""

    tokens: int
    accepted_tokens: int = Field(description="of these, the draft tokens that were accepted")


class CompletionTokensDetails(BaseModel):
    """Of the generated tokens."""

    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    reasoning_tokens: int | None = None


class PromptTokensDetails(BaseModel):
    """Of the prompt's tokens; `cached_tokens` were read from the prefix cache."""

    cached_tokens: int


class UsageResponse(BaseModel):
    """Tokens of a call; details of the prompt are absent unless the engine reports them."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails
    specdecode: SpeculationUsage


class PromptLogprob(BaseModel):
    """A token at one place of the prompt; `rank` is null for a token that is not among the top."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]


class RoutedExpertsResponse(BaseModel):
    """Experts of each token that was computed: the prompt's and all generated but the last."""

    data: str = Field(description="base64 of a little-endian array in C order")
    shape: list[int] = Field(description="tokens, layers with experts, experts per token")
    dtype: Literal["uint8", "int16", "int32"]


class CompletionLogprobs(BaseModel):
    """Parallel lists, one item per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One generated text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReasonText | None
    error: ChoiceError | None = None
    routed_experts: RoutedExpertsResponse | None = None
    prompt_logprobs: PromptLogprobs | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class CompletionResponse(BaseModel):
    """The response of POST /v1/completions, or an event of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageResponse | None = None
    speculation: EventSpeculation | None = None


class TokenLogprob(BaseModel):
    """A token with its logprob; `bytes` is null for a special token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(TokenLogprob):
    """A token of the message with the most likely ones in its place."""

    top_logprobs: list[TokenLogprob]


class ChatLogprobs(BaseModel):
    """Logprobs of the message's tokens."""

    content: list[ChatTokenLogprob]
    refusal: None


class FunctionResponse(BaseModel):
    """Name and arguments, which are JSON text; in a delta each may be absent."""

    name: str | None = None
    arguments: str | None = None


class ToolCallResponse(BaseModel):
    """A call of a tool; `index` is in deltas only."""

    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionResponse


class MessageResponse(BaseModel):
    """The assistant's message, or what a delta adds to it."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = Field(None, description="the same text")
    tool_calls: list[ToolCallResponse] | None = None


class ChatChoice(BaseModel):
    """One generated message."""

    index: int
    message: MessageResponse
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonText | None
    error: ChoiceError | None = None
    routed_experts: RoutedExpertsResponse | None = None
    token_ids: list[int] | None = None


class ChatResponse(BaseModel):
    """The response of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageResponse
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class ChatChunkChoice(BaseModel):
    """What an event adds to a choice."""

    index: int
    delta: MessageResponse
    logprobs: ChatLogprobs | None
    finish_reason: FinishReasonText | None
    error: ChoiceError | None = None
    routed_experts: RoutedExpertsResponse | None = None
    token_ids: list[int] | None = None


class ChatChunk(BaseModel):
    """An event of the stream of POST /v1/chat/completions."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageResponse | None = None
    speculation: EventSpeculation | None = None
    prompt_token_ids: list[int] | None = None


class ModelCard(BaseModel):
    """The model that is served, or a LoRA adapter of it."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str = Field(description="path or name of the checkpoint")
    parent: str | None = Field(description="of an adapter, the id of its model")
    max_model_len: int


class ModelList(BaseModel):
    """The response of GET /v1/models."""

    object: Literal["list"]
    data: list[ModelCard]


class ModelInfo(BaseModel):
    """The response of GET /model_info and /get_model_info, which clients of SGLang read."""

    model_path: str
    served_model_name: str
    tokenizer_path: str
    is_generation: bool
    preferred_sampling_params: None
    has_image_understanding: bool
    has_audio_understanding: bool


class HealthResponse(BaseModel):
    """The response of GET /health and /ping."""

    status: Literal["ok", "unavailable"]
    reason: str | None = None


class VersionResponse(BaseModel):
    """The response of GET /version."""

    version: str


class OpenApiDocument(BaseModel):
    """The response of GET /openapi.json."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]
