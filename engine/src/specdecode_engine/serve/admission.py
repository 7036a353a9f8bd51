"""From a checked body to requests for the core: defaults, seeds, and what fits."""

import secrets
import time
import uuid
from dataclasses import dataclass, replace
from typing import TypeVar

from specdecode_engine.grammar import Grammar
from specdecode_engine.request import Request, SamplingParams
from specdecode_engine.serve import errors
from specdecode_engine.serve.call import Call, sequence_seed
from specdecode_engine.serve.text_model import SamplingDefaults
from specdecode_engine.serve.wire import GenerationBody

# Below this, dividing logits by the temperature overflows; nothing but the maximum is left anyway.
GREEDY_BELOW = 1e-5
SEED_MASK = 2**63 - 1

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one call may ask of this engine."""

    served_name: str
    context_length: int
    vocab_size: int
    max_sequences: int


@dataclass(frozen=True, slots=True)
class PromptIds:
    """A prompt in ids, and the text that its answers begin with."""

    token_ids: tuple[int, ...]
    echo: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the answers should be like, and whose fields say how long they may be."""

    max_tokens: int | None
    default_max_tokens: int | None
    logprobs: int | None
    prompt_field: str
    prompt_logprobs: int | None = None
    length_field: str = "max_tokens"
    grammar: Grammar | None = None
    label: str = ""


def check_model(body: GenerationBody, limits: Limits) -> None:
    """Refuse a call for another model."""
    if body.model not in (None, limits.served_name):
        message = f"model {body.model!r} is not served here; use {limits.served_name!r}"
        raise errors.ApiError(404, message, param="model", code="model_not_found")


def admit(
    body: GenerationBody,
    prompts: tuple[PromptIds, ...],
    wish: Wish,
    limits: Limits,
    defaults: SamplingDefaults,
    started_s: float,
) -> Call:
    """Return the call, or raise the error that says which field to change."""
    count = body.n or 1
    _check_count(len(prompts) * count, limits)
    call_id = uuid.uuid4().hex
    base = _sampling(body, wish, limits, defaults)
    requests: list[Request] = []
    for prompt in prompts:
        _check_ids(prompt.token_ids, wish.prompt_field, limits)
        max_tokens = _answer_length(prompt, wish, limits)
        for index in range(count):
            sampling = replace(base, seed=sequence_seed(base.seed, index), max_tokens=max_tokens)
            name = f"{call_id}-{len(requests)}"
            requests.append(Request(name, prompt.token_ids, sampling, wish.grammar, wish.label))
    return Call(
        call_id=call_id,
        created=int(time.time()),
        started_s=started_s,
        model=limits.served_name,
        requests=tuple(requests),
        echoes=tuple(prompt.echo for prompt in prompts for _ in range(count)),
        prompt_tokens=sum(len(prompt.token_ids) for prompt in prompts),
        stops=tuple(body.stop or ()),
        include_usage=body.include_usage,
    )


def _sampling(
    body: GenerationBody, wish: Wish, limits: Limits, defaults: SamplingDefaults
) -> SamplingParams:
    biases = {int(token_id): bias for token_id, bias in (body.logit_bias or {}).items()}
    _check_vocabulary("logit_bias", tuple(biases), limits)
    temperature = _first(body.temperature, defaults.temperature)
    return SamplingParams(
        seed=secrets.randbits(63) if body.seed is None else body.seed & SEED_MASK,
        max_tokens=1,
        temperature=temperature if temperature >= GREEDY_BELOW else 0.0,
        top_p=_first(body.top_p, defaults.top_p),
        top_k=_first(body.top_k, defaults.top_k),
        min_p=_first(body.min_p, defaults.min_p),
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=biases,
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=wish.logprobs,
        prompt_logprobs=wish.prompt_logprobs,
    )


def _first(given: Number | None, default: Number) -> Number:
    return default if given is None else given


def _check_count(sequences: int, limits: Limits) -> None:
    if sequences > limits.max_sequences:
        raise errors.invalid(
            "n",
            f"the call asks for {sequences} answers at once, this engine takes at most "
            f"{limits.max_sequences}; send fewer prompts or a smaller n",
        )


def _check_ids(token_ids: tuple[int, ...], field: str, limits: Limits) -> None:
    if not token_ids:
        raise errors.invalid(field, f"{field} has no tokens; give at least one")
    _check_vocabulary(field, token_ids, limits)


def _check_vocabulary(field: str, token_ids: tuple[int, ...], limits: Limits) -> None:
    wrong = [token_id for token_id in token_ids if not 0 <= token_id < limits.vocab_size]
    if wrong:
        raise errors.invalid(
            field, f"{field} has token id {wrong[0]}; ids are 0 to {limits.vocab_size - 1}"
        )


def _answer_length(prompt: PromptIds, wish: Wish, limits: Limits) -> int:
    length = len(prompt.token_ids)
    room = limits.context_length - length
    least = 0 if wish.max_tokens == 0 else 1
    if room < least:
        raise errors.too_long(
            f"{wish.prompt_field} has {length} tokens, the context {limits.context_length}; "
            f"at most {limits.context_length - least} leave room for {least} tokens of an answer",
            wish.prompt_field,
        )
    if wish.max_tokens is None:
        return min(wish.default_max_tokens or room, room)
    if wish.max_tokens > room:
        raise errors.too_long(
            f"{length} tokens of {wish.prompt_field} and {wish.length_field} {wish.max_tokens} "
            f"exceed the context of {limits.context_length}; ask for at most {room}",
            wish.length_field,
        )
    return wish.max_tokens
