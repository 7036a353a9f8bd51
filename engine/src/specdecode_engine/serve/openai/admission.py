"""From an HTTP request to the engine's: reads the body, applies defaults and checks limits.

Chat and text completions share this; they differ in their body, prompts and formatter.
"""

import asyncio
import hashlib
import logging
import secrets
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fastapi import Request as HttpRequest
from fastapi import Response
from pydantic import ValidationError

from specdecode_api import names
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.grammar import Grammar
from specdecode_engine.serve import errors
from specdecode_engine.serve.openai.constraints import read_constraint
from specdecode_engine.serve.openai.protocol import GenerationBody
from specdecode_engine.serve.openai.streaming import ResponseFormatter, StreamingReply
from specdecode_engine.serve.service import Service, service_of
from specdecode_engine.serve.text.tokenizer import TextProcessor, Vocabulary

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 2**20
# Most clients read an error only after they have sent the whole body: up to here it is read.
MAX_DISCARDED_BYTES = 4 * MAX_BODY_BYTES

# Below this, dividing logits by the temperature overflows; the result is greedy in any case.
GREEDY_BELOW = 1e-5
SEED_MASK = 2**63 - 1

Body = TypeVar("Body", bound=GenerationBody)
Number = TypeVar("Number", int, float)

EncodedPrompt = tuple[tuple[int, ...], str]
"""A prompt's token ids, and its text where choices begin with it, else an empty string."""


async def generate(
    http_request: HttpRequest,
    body_type: type[Body],
    read_prompts: Callable[[Body, TextProcessor, int], tuple[EncodedPrompt, ...]],
    make_formatter: Callable[[Body, Vocabulary], ResponseFormatter],
) -> Response:
    """Read and admit a request; the reply runs it.

    Args:
        read_prompts: encodes the body's prompts and checks them against a context length; called
            in a thread.

    Raises:
        HttpError: the request cannot be served.
    """
    service = service_of(http_request)
    service.lifecycle.check_admission()
    started_s = service.clock()
    body = await read_body(http_request, body_type)
    text, context_length = service.text, service.engine.context_length
    _check_model(body, service)
    prompts = await asyncio.to_thread(read_prompts, body, text, context_length)
    constraint = read_constraint(body) if body.is_constrained else None
    grammar = await service.grammars.compile(*constraint) if constraint else None
    requests = admit(body, prompts, service, grammar, read_label(http_request, service))
    prompt_texts = [echo for _, echo in prompts for _ in range(body.n or 1)]
    formatter = make_formatter(body, text.vocabulary)
    return StreamingReply(service, body, requests, prompt_texts, formatter, started_s)


async def read_body(
    http_request: HttpRequest, body_type: type[Body], max_bytes: int = MAX_BODY_BYTES
) -> Body:
    """Return the validated body.

    Raises:
        HttpError: the body is too large, is not valid JSON, or a field is invalid.
    """
    data = await _read(http_request, max_bytes)
    try:
        body = body_type.model_validate_json(data)
    except ValidationError as error:
        raise errors.from_validation(error) from None
    if body.model_extra:
        log.debug("ignored unknown fields: %s", sorted(body.model_extra))
    return body


async def _read(http_request: HttpRequest, max_bytes: int) -> bytes:
    received = 0
    parts: list[bytes] = []
    async for part in http_request.stream():
        received += len(part)
        if received > max_bytes:
            parts.clear()
        else:
            parts.append(part)
        if received > MAX_DISCARDED_BYTES:
            break
    if received > max_bytes:
        message = f"the body is larger than {max_bytes} bytes; split it into several requests"
        raise errors.HttpError(413, message, code="body_too_large")
    return b"".join(parts)


def read_label(http_request: HttpRequest, service: Service) -> str:
    """Return the request's label where the boot file lists it, else an empty string.

    Clients may invent any number of labels; the number of metric series has to stay bounded.
    """
    label = http_request.headers.get(names.HEADER_LABEL, "").strip()
    return label if label in service.boot.server.request_labels else ""


def _check_model(body: GenerationBody, service: Service) -> None:
    if body.model not in (None, service.served_name):
        raise errors.model_not_found(str(body.model), service.served_name)


def admit(
    body: GenerationBody,
    prompts: tuple[EncodedPrompt, ...],
    service: Service,
    grammar: Grammar | None = None,
    label: str = "",
) -> tuple[Request, ...]:
    """Return the engine's requests, one for each choice; the first has the id of the response.

    Raises:
        HttpError: names the field that exceeds a limit, the limit and the remedy.
    """
    count = body.n or 1
    _check_count(len(prompts) * count, service.max_sequences)
    request_id = uuid.uuid4().hex
    vocab_size, context_length = service.text.vocab_size, service.engine.context_length
    base = _sampling(body, service.text)
    requests: list[Request] = []
    for prompt_ids, _ in prompts:
        _check_prompt(prompt_ids, body.prompt_field, vocab_size)
        max_tokens = _max_tokens(len(prompt_ids), body, context_length)
        for index in range(count):
            sampling = replace(base, seed=sequence_seed(base.seed, index), max_tokens=max_tokens)
            name = f"{request_id}-{len(requests)}" if requests else request_id
            requests.append(Request(name, prompt_ids, sampling, grammar, label))
    return tuple(requests)


def sequence_seed(seed: int, index: int) -> int:
    """Return the seed of choice `index` of one prompt; choice 0 uses the request's own seed."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _sampling(body: GenerationBody, text: TextProcessor) -> SamplingParams:
    defaults = text.defaults
    biases = {int(token_id): bias for token_id, bias in (body.logit_bias or {}).items()}
    _check_vocabulary("logit_bias", tuple(biases), text.vocab_size)
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


def _check_count(sequences: int, max_sequences: int) -> None:
    if sequences > max_sequences:
        raise errors.invalid(
            "n",
            f"the request needs {sequences} sequences (prompts times n); this engine accepts at "
            f"most {max_sequences}; send fewer prompts or a smaller n",
        )


def _check_prompt(token_ids: tuple[int, ...], field: str, vocab_size: int) -> None:
    if not token_ids:
        raise errors.invalid(field, f"{field} has no tokens; send at least one")
    _check_vocabulary(field, token_ids, vocab_size)


def _check_vocabulary(field: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    wrong = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    if wrong:
        raise errors.invalid(
            field, f"{field} has token id {wrong[0]}; valid ids are 0 to {vocab_size - 1}"
        )


def _max_tokens(prompt_tokens: int, body: GenerationBody, context_length: int) -> int:
    """Return how many tokens to generate after a prompt: as requested, or by default what fits."""
    requested = body.requested_tokens
    room = context_length - prompt_tokens
    least = 0 if requested == 0 else 1
    if room < least:
        raise errors.too_long(
            f"{body.prompt_field} has {prompt_tokens} tokens; the model's context is "
            f"{context_length} tokens; at most {context_length - least} leave room "
            f"for {least} generated tokens; shorten {body.prompt_field}",
            body.prompt_field,
        )
    if requested is None:
        return min(body.default_max_tokens or room, room)
    if requested > room:
        raise errors.too_long(
            f"{body.prompt_field} has {prompt_tokens} tokens and {body.length_field} is "
            f"{requested}; the model's context is {context_length} tokens; set "
            f"{body.length_field} to at most {room}",
            body.length_field,
        )
    return requested
