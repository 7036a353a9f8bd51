"""Turns a validated body into a `GenerationRequest`: defaults, seeds, and the engine's limits."""

import hashlib
import secrets
import time
import uuid
from dataclasses import dataclass, replace
from typing import TypeVar

from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.grammar import Grammar
from specdecode_engine.serve import errors
from specdecode_engine.serve.openai.protocol import GenerationBody
from specdecode_engine.serve.text.tokenizer import SamplingDefaults

# Below this, dividing logits by the temperature overflows; the result is greedy in any case.
GREEDY_BELOW = 1e-5
SEED_MASK = 2**63 - 1

Number = TypeVar("Number", int, float)

EncodedPrompt = tuple[tuple[int, ...], str]
"""A prompt's token ids, and its text where choices begin with it, else an empty string."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one HTTP request may ask of this engine, and the defaults of its model."""

    served_name: str
    context_length: int
    vocab_size: int
    max_sequences: int
    defaults: SamplingDefaults


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A normalized HTTP request. Choice i of the response is `requests[i]`.

    `echoes[i]` is the text that choice i begins with. `prompt_tokens` counts each prompt once, for
    any number of choices. `started_s` is on the service's monotonic clock.
    """

    request_id: str
    created: int
    started_s: float
    model: str
    requests: tuple[Request, ...]
    echoes: tuple[str, ...]
    prompt_tokens: int
    stop: tuple[str, ...]
    is_stream: bool
    include_usage: bool


def check_model(body: GenerationBody, limits: RequestLimits) -> None:
    """Raise unless the body names the served model, or none."""
    if body.model not in (None, limits.served_name):
        raise errors.model_not_found(str(body.model), limits.served_name)


def admit(
    body: GenerationBody,
    prompts: tuple[EncodedPrompt, ...],
    limits: RequestLimits,
    started_s: float,
    grammar: Grammar | None = None,
    label: str = "",
) -> GenerationRequest:
    """Return the normalized request.

    Raises:
        HttpError: names the field that exceeds a limit, the limit and the remedy.
    """
    count = body.n or 1
    _check_count(len(prompts) * count, limits)
    request_id = uuid.uuid4().hex
    base = _sampling(body, limits)
    requests: list[Request] = []
    for prompt_ids, _ in prompts:
        _check_prompt(prompt_ids, body.prompt_field, limits)
        max_tokens = _max_tokens(len(prompt_ids), body, limits)
        for index in range(count):
            sampling = replace(base, seed=sequence_seed(base.seed, index), max_tokens=max_tokens)
            name = f"{request_id}-{len(requests)}"
            requests.append(Request(name, prompt_ids, sampling, grammar, label))
    return GenerationRequest(
        request_id=request_id,
        created=int(time.time()),
        started_s=started_s,
        model=limits.served_name,
        requests=tuple(requests),
        echoes=tuple(echo for _, echo in prompts for _ in range(count)),
        prompt_tokens=sum(len(prompt_ids) for prompt_ids, _ in prompts),
        stop=tuple(body.stop or ()),
        is_stream=bool(body.stream),
        include_usage=body.include_usage,
    )


def sequence_seed(seed: int, index: int) -> int:
    """Return the seed of choice `index` of one prompt; choice 0 uses the request's own seed."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _sampling(body: GenerationBody, limits: RequestLimits) -> SamplingParams:
    defaults = limits.defaults
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
        logprobs=body.num_logprobs,
        prompt_logprobs=body.num_prompt_logprobs,
    )


def _first(given: Number | None, default: Number) -> Number:
    return default if given is None else given


def _check_count(sequences: int, limits: RequestLimits) -> None:
    if sequences > limits.max_sequences:
        raise errors.invalid(
            "n",
            f"the request needs {sequences} sequences (prompts times n); this engine accepts at "
            f"most {limits.max_sequences}; send fewer prompts or a smaller n",
        )


def _check_prompt(token_ids: tuple[int, ...], field: str, limits: RequestLimits) -> None:
    if not token_ids:
        raise errors.invalid(field, f"{field} has no tokens; send at least one")
    _check_vocabulary(field, token_ids, limits)


def _check_vocabulary(field: str, token_ids: tuple[int, ...], limits: RequestLimits) -> None:
    wrong = [token_id for token_id in token_ids if not 0 <= token_id < limits.vocab_size]
    if wrong:
        raise errors.invalid(
            field, f"{field} has token id {wrong[0]}; valid ids are 0 to {limits.vocab_size - 1}"
        )


def _max_tokens(prompt_tokens: int, body: GenerationBody, limits: RequestLimits) -> int:
    """Return how many tokens to generate after a prompt: as requested, or by default what fits."""
    requested = body.requested_tokens
    room = limits.context_length - prompt_tokens
    least = 0 if requested == 0 else 1
    if room < least:
        raise errors.too_long(
            f"{body.prompt_field} has {prompt_tokens} tokens; the model's context is "
            f"{limits.context_length} tokens; at most {limits.context_length - least} leave room "
            f"for {least} generated tokens; shorten {body.prompt_field}",
            body.prompt_field,
        )
    if requested is None:
        return min(body.default_max_tokens or room, room)
    if requested > room:
        raise errors.too_long(
            f"{body.prompt_field} has {prompt_tokens} tokens and {body.length_field} is "
            f"{requested}; the model's context is {limits.context_length} tokens; set "
            f"{body.length_field} to at most {room}",
            body.length_field,
        )
    return requested
