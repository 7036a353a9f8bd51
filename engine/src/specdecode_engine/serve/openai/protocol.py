"""Request bodies: the fields that both APIs share, and the body of text completions.

They are OpenAI's fields with the extensions of vLLM and SGLang. A field that is absent or null has
its default. Unknown fields are refused where an engine changes answers by them, else ignored.
"""

import re
from abc import abstractmethod
from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
    model_validator,
)

from specdecode_engine.serve.errors import SHOWN_VALUE_CHARS, field_error
from specdecode_engine.serve.openai.constraints import ConstraintFields
from specdecode_engine.serve.openai.refused_fields import (
    COMMON,
    COMPLETIONS,
    RefusedFields,
    check_refused,
)

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARS = 256
MAX_LOGPROBS = 20
MAX_BIAS = 100
MAX_SPECULATION_KEYS = 16
MAX_CACHE_SALT_CHARS = 256
INT64 = 2**63
DEFAULT_COMPLETION_TOKENS = 16
# JSON has no infinity; OpenAI writes this value for a probability of 0.
LOWEST_LOGPROB = -9999.0
TOKEN_ID = re.compile(r"[0-9]{1,10}")

Prompt = str | tuple[int, ...]


def _prompts(value: object) -> tuple[Prompt, ...]:
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if all(type(item) is int for item in value):
            return (tuple(value),)
        if all(isinstance(item, str) for item in value):
            return tuple(value)
        if all(isinstance(ids, list) and {type(item) for item in ids} == {int} for ids in value):
            return tuple(tuple(item) for item in value)
    raise ValueError(
        "send a string, a list of strings, a list of token ids or a list of lists of token ids, "
        "with at least one item in each list"
    )


def _first_wrong_bias(biases: object) -> object:
    """Return the first entry that is not a number in range alone, else all: one error is enough."""
    entries = biases.items() if isinstance(biases, dict) else ()
    wrong = ((key, bias) for key, bias in entries if not _is_bias(bias))
    return next(({key: bias} for key, bias in wrong), biases)


def _is_bias(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -MAX_BIAS <= value <= MAX_BIAS


def _check_keys(biases: dict[str, float]) -> dict[str, float]:
    wrong = next((key for key in biases if not TOKEN_ID.fullmatch(key)), None)
    if wrong is not None:
        shown = wrong[:SHOWN_VALUE_CHARS]
        raise ValueError(f"the key {shown!r} is not a token id; keys are decimal token ids")
    return biases


def at_most_keys(most: int) -> BeforeValidator:
    """Return what refuses an object with more keys, each of which could be an error."""

    def check(value: object) -> object:
        if isinstance(value, dict) and len(value) > most:
            raise ValueError(f"it has {len(value)} keys; at most {most} are accepted")
        return value

    return BeforeValidator(check)


StopText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_STOP_CHARS)]
Stops = Annotated[list[StopText], Field(max_length=MAX_STOPS)]
BadWord = Annotated[str, StringConstraints(min_length=1, max_length=MAX_BAD_WORD_CHARS)]
TopK = Annotated[int, Field(ge=-1, lt=2**31), AfterValidator(lambda top_k: max(top_k, 0))]
Bias = Annotated[float, Field(ge=-MAX_BIAS, le=MAX_BIAS)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]


def _check_truncation(tokens: int) -> int:
    if tokens < 1 and tokens != AS_MANY_AS_FIT:
        raise ValueError("send at least 1, or -1 for as many tokens as fit")
    return tokens


AS_MANY_AS_FIT = -1
TruncatedTokens = Annotated[int, Field(lt=2**31), AfterValidator(_check_truncation)]


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    model_config = ConfigDict(strict=True, extra="allow")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class SpeculationLimit(BaseModel):
    """Field `speculation`: the most draft steps for the request; 0 turns speculation off."""

    model_config = ConfigDict(strict=True, extra="forbid")

    max_steps: Annotated[int, Field(ge=0, lt=2**31)] | None = None


class GenerationBody(ConstraintFields):
    """The fields that both APIs share.

    The properties are what differs in admission: the fields to name in errors, and defaults.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True)
    prompt_field: ClassVar[str]
    refusals: ClassVar[RefusedFields]
    default_max_tokens: ClassVar[int | None] = None

    model: str | None = None
    lora_path: str | None = None
    n: Annotated[int, Field(ge=1, le=128)] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: TopK | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: (
        Annotated[dict[str, Bias], BeforeValidator(_first_wrong_bias), AfterValidator(_check_keys)]
        | None
    ) = None
    seed: Annotated[int, Field(ge=-INT64, lt=INT64)] | None = None
    stop: Annotated[
        Stops | None,
        BeforeValidator(
            lambda stop: [stop] if isinstance(stop, str) else stop,
            json_schema_input_type=StopText | Stops | None,
        ),
    ] = None
    stop_token_ids: Annotated[list[TokenId], Field(fail_fast=True)] | None = None
    ignore_eos: bool | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    include_stop_str_in_output: bool | None = Field(
        None, validation_alias=AliasChoices("include_stop_str_in_output", "no_stop_trim")
    )
    skip_special_tokens: bool | None = None
    bad_words: Annotated[list[BadWord], Field(max_length=MAX_BAD_WORDS)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Field(min_length=1, fail_fast=True)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    truncate_prompt_tokens: TruncatedTokens | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_routed_experts: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    speculation: Annotated[SpeculationLimit | None, at_most_keys(MAX_SPECULATION_KEYS)] = None
    return_speculation: bool | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: (
        Annotated[str, StringConstraints(min_length=1, max_length=MAX_CACHE_SALT_CHARS)] | None
    ) = None

    @model_validator(mode="after")
    def _check_stream(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "it needs stream: true")
        if self.stream and self.prompt_logprobs is not None:
            raise field_error("prompt_logprobs", "a stream does not contain them; remove stream")
        return self

    @model_validator(mode="after")
    def _check_refused(self) -> Self:
        check_refused(self.model_extra, COMMON)
        check_refused(self.model_extra, self.refusals)
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        """Whether every chunk of a stream has the usage so far."""
        options = self.stream_options
        return self.include_usage and bool(options and options.continuous_usage_stats)

    @property
    def has_own_event_fields(self) -> bool:
        """Whether events of a stream have fields that depend on more than what was added."""
        return self.has_continuous_usage or bool(self.return_speculation)

    @property
    def returns_token_ids(self) -> bool:
        """Whether the response has the ids of the prompt's and the generated tokens."""
        return False

    @property
    def requested_tokens(self) -> int | None:
        """The number of tokens to generate; None where the body contains no limit."""
        return self.max_tokens

    @property
    def length_field(self) -> str:
        return "max_tokens"

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """As `SamplingParams.logprobs`."""

    @property
    def num_prompt_logprobs(self) -> int | None:
        """As `SamplingParams.prompt_logprobs`."""
        return self.prompt_logprobs


class CompletionBody(GenerationBody):
    """Body of POST /v1/completions."""

    prompt_field = "prompt"
    refusals = COMPLETIONS
    default_max_tokens = DEFAULT_COMPLETION_TOKENS

    prompt: Annotated[
        tuple[Prompt, ...],
        PlainValidator(
            _prompts, json_schema_input_type=str | list[str] | list[TokenId] | list[list[TokenId]]
        ),
    ]
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    return_token_ids: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _check_available(self) -> Self:
        if self.best_of not in (None, self.n or 1):
            raise field_error("best_of", "a value other than n is not supported; remove it")
        if self.echo and self.logprobs is not None and self.prompt_logprobs is not None:
            raise field_error("prompt_logprobs", "echo with logprobs contains them; remove one")
        if self.suffix:
            raise field_error("suffix", "it is not supported; remove it")
        if self.max_tokens == 0 and not self.echo:
            raise field_error(
                "max_tokens", "0 generates nothing; set it to at least 1, or set echo: true"
            )
        return self

    @property
    def returns_token_ids(self) -> bool:
        return bool(self.return_token_ids)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo and self.logprobs is not None else self.prompt_logprobs
