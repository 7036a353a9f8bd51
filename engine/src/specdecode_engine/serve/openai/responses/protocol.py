"""Body of POST /v1/responses: input items, flat tools, and what is refused."""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from specdecode_engine.serve.errors import field_error
from specdecode_engine.serve.openai.chat_protocol import ReasoningEffort
from specdecode_engine.serve.openai.constraints import ResponseFormat
from specdecode_engine.serve.openai.protocol import GenerationBody, at_most_keys
from specdecode_engine.serve.openai.refused_fields import (
    REASONING,
    RESPONSES,
    STRUCTURED_OUTPUTS,
    check_constraint,
    check_refused,
)
from specdecode_engine.serve.openai.responses.tools import MAX_TOOLS, ResponsesTool, WebSearch
from specdecode_engine.serve.openai.tool_choice import ResponsesChoice
from specdecode_engine.serve.openai.tools import ArgumentText

_TEXT_FIELDS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "reasoning_text": "text",
    "summary_text": "text",
    "refusal": "refusal",
}
LOGPROBS = "message.output_text.logprobs"
MAX_METADATA = 16


def _joined(content: object) -> object:
    """Return a list of parts as one text."""
    if not isinstance(content, list):
        return content
    texts = [
        part.get(_TEXT_FIELDS.get(part.get("type") or "", "")) if isinstance(part, dict) else None
        for part in content
    ]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("only parts of text are supported (input_text, output_text, refusal)")
    return "\n".join(map(str, texts))


JoinedText = Annotated[str, BeforeValidator(_joined)]


class _Item(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True)


class MessageItem(_Item):
    """A message; `type` may be left out."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: JoinedText


class FunctionCallItem(_Item):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: ArgumentText = ""


class CustomCallItem(_Item):
    """A call of a custom tool that the model made."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    namespace: str | None = None
    input: str


class CallOutputItem(_Item):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str
    output: JoinedText


class ReasoningItem(_Item):
    """Reasoning of the model before a message or a call."""

    type: Literal["reasoning"]
    summary: JoinedText = ""
    content: Annotated[str | None, BeforeValidator(_joined)] = None


class ItemReference(_Item):
    """An item of a stored response; `type` may be left out."""

    type: Literal["item_reference"] | None = None
    id: str


def _item_type(item: object) -> str:
    if isinstance(item, ItemReference):
        return "item_reference"
    kind = item.get("type") if isinstance(item, dict) else getattr(item, "type", None)
    if kind is not None:
        return str(kind)
    is_reference = isinstance(item, dict) and "id" in item and "role" not in item
    return "item_reference" if is_reference else "message"


InputItem = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[FunctionCallItem, Tag("function_call")]
    | Annotated[CustomCallItem, Tag("custom_tool_call")]
    | Annotated[CallOutputItem, Tag("function_call_output")]
    | Annotated[CallOutputItem, Tag("custom_tool_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")]
    | Annotated[ItemReference, Tag("item_reference")],
    Discriminator(
        _item_type,
        custom_error_type="item_type",
        custom_error_message="its type has to be message, function_call, function_call_output, "
        "custom_tool_call, custom_tool_call_output, reasoning or item_reference; change the type "
        "or remove the item",
    ),
]


def _items(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class TextFormat(_Item):
    """`text.format`: the grammar of the text; `json_object` may have a schema, as in chat."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    content: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _check_schema(self) -> Self:
        if self.type == "json_schema" and self.content is None:
            raise field_error("schema", "type json_schema requires it")
        if self.type == "text" and self.content is not None:
            raise field_error("schema", "type text does not use it; change the type or remove it")
        check_constraint(self.model_extra, STRUCTURED_OUTPUTS)
        return self

    def as_response_format(self) -> ResponseFormat:
        fields = {"type": self.type, "schema": self.content, "strict": self.strict}
        return ResponseFormat.model_validate(fields)


class TextConfig(_Item):
    """Field `text`."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    format: TextFormat | None = None


class ReasoningConfig(_Item):
    """Field `reasoning`; summaries are not made."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    effort: ReasoningEffort | None = None

    @model_validator(mode="after")
    def _check_refused(self) -> Self:
        check_refused(self.model_extra, REASONING)
        return self


def _refuse(remedy: str) -> AfterValidator:
    def check(value: object) -> object:
        if value:
            raise ValueError(f"it is not supported; {remedy}")
        return None

    return AfterValidator(check)


class ResponsesBody(GenerationBody):
    """Body of POST /v1/responses."""

    prompt_field = "input"
    refusals = RESPONSES

    input: Annotated[
        list[InputItem],
        Field(min_length=1, fail_fast=True),
        BeforeValidator(_items, json_schema_input_type=str | list[InputItem]),
    ]
    instructions: str | None = None
    tools: Annotated[list[ResponsesTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: ResponsesChoice = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    metadata: Annotated[
        dict[str, str] | None, Field(max_length=MAX_METADATA), at_most_keys(MAX_METADATA)
    ] = None
    include: Annotated[list[str], Field(fail_fast=True)] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    store: bool | None = None
    background: Annotated[bool | None, _refuse("remove it")] = None
    previous_response_id: str | None = None
    conversation: Annotated[object, _refuse("send the earlier items in input and remove it")] = None
    prompt: Annotated[object, _refuse("send instructions and input")] = None

    @model_validator(mode="after")
    def _check_supported(self) -> Self:
        if self.n not in (None, 1):
            raise field_error("n", "a response has one output; remove it")
        if self.max_tokens is not None:
            raise field_error("max_tokens", "it is not supported: use max_output_tokens")
        if self.top_logprobs or LOGPROBS in (self.include or ()):
            field = "top_logprobs" if self.top_logprobs else "include"
            raise field_error(field, "logprobs are available from /v1/chat/completions only")
        if self.prompt_logprobs is not None:
            raise field_error("prompt_logprobs", "it is available from /v1/chat/completions only")
        if self.return_routed_experts:
            raise field_error(
                "return_routed_experts", "it is available from /v1/chat/completions only"
            )
        if self.truncation not in (None, "disabled"):
            raise field_error("truncation", 'only "disabled" is supported; shorten input')
        options = (self.model_extra or {}).get("prompt_cache_options")
        if isinstance(options, dict) and options.get("prewarm"):
            raise field_error(
                "prompt_cache_options.prewarm",
                "every request generates; set max_output_tokens to 1",
            )
        if self.response_format is not None:
            raise field_error("response_format", "send text.format instead")
        return self

    @property
    def has_continuous_usage(self) -> bool:
        return False  # the last event has it, whatever is requested

    @property
    def ignored_names(self) -> list[str]:
        """What is accepted and left out, next to unknown fields."""
        return ["web_search" for tool in self.tools or () if isinstance(tool, WebSearch)]

    @property
    def requested_tokens(self) -> int | None:
        return self.max_output_tokens

    @property
    def length_field(self) -> str:
        return "max_output_tokens"

    @property
    def num_logprobs(self) -> int | None:
        return None
