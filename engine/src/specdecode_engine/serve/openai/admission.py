"""From an HTTP request to the engine's: reads the body, applies defaults and checks limits.

Chat and text completions share this; they differ in their body, prompts and formatter.
"""

import asyncio
import hashlib
import re
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, Self, TypeVar

from fastapi import Request as HttpRequest
from fastapi import Response

from specdecode_api import names
from specdecode_engine.batch.request import FinishReason, Request, SamplingParams, queue_order
from specdecode_engine.batch.sampling_defaults import LEAST_TOP_P
from specdecode_engine.grammar import GrammarSource, TranslatedGrammar
from specdecode_engine.serve import errors
from specdecode_engine.serve.json_body import read_json
from specdecode_engine.serve.openai.formatting import ResponseFormatter, ResponseHead
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.openai.protocol import AS_MANY_AS_FIT, GenerationBody
from specdecode_engine.serve.openai.routed_experts import MAX_BYTES
from specdecode_engine.serve.openai.service import Service, service_of
from specdecode_engine.serve.openai.streaming import AdmittedCall, StreamingReply
from specdecode_engine.serve.openai.token_rules import BodyRules, read_rules, rule_field
from specdecode_engine.serve.parsers.message import ContentParser, ReasoningParser
from specdecode_engine.serve.text.tokenizer import TextProcessor, Vocabulary
from specdecode_server.api_keys import key_digest

# Below this, dividing logits by the temperature overflows; the result is greedy in any case.
GREEDY_BELOW = 1e-5
SEED_MASK = 2**63 - 1
MAX_STEPS_PATTERN = re.compile(r"[0-9]{1,9}")

Body = TypeVar("Body", bound=GenerationBody)

EncodedPrompt = tuple[tuple[int, ...], str]
"""A prompt's token ids, and its text where choices begin with it, else an empty string."""


@dataclass(frozen=True, slots=True)
class PreparedCall:
    """A body made ready for the engine.

    `constraint` is a grammar for every choice and the field to name in its errors. `eos_token_ids`
    end an answer unless the request ignores them. `make_parser` makes the parser of one choice's
    text, which reads the special tokens `visible_ids`.
    """

    prompts: tuple[EncodedPrompt, ...]
    constraint: tuple[str, GrammarSource] | None
    eos_token_ids: frozenset[int]
    make_parser: Callable[[], ReasoningParser] = ContentParser
    visible_ids: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class GenerationApi(Generic[Body]):
    """An API that generates text.

    `prepare` runs in a thread; it encodes prompts and checks their length. `resolve`, if there is
    one, runs before it: it puts in what the body names, for the digest of the client's key.
    """

    path: str
    body_type: type[Body]
    prepare: Callable[[Body, Service], PreparedCall]
    make_formatter: "MakeFormatter[Body]"
    resolve: "Resolve[Body] | None" = None


@dataclass(frozen=True, slots=True)
class ChoiceSoFar:
    """The beginning of a choice that another engine has generated."""

    token_ids: tuple[int, ...]
    sent_characters: int
    finish_reason: FinishReason | None = None

    @property
    def has_begun(self) -> bool:
        """Whether anything of the choice was sent, its echo included."""
        return bool(self.token_ids or self.sent_characters or self.finish_reason)


NOTHING_SO_FAR = ChoiceSoFar((), 0)


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """What identifies a call, and what another engine has done of it.

    Without `seed` the engine draws one where the body has none. `max_tokens` are those that the
    first engine allowed after each prompt.
    """

    request_id: str
    created: int
    seed: int | None = None
    max_tokens: tuple[int, ...] = ()
    choices: tuple[ChoiceSoFar, ...] = ()

    @classmethod
    def here(cls) -> Self:
        """Return the origin of a call that begins now, without a router."""
        return cls(uuid.uuid4().hex, int(time.time()))


MakeFormatter = Callable[[Body, ResponseHead, Vocabulary], ResponseFormatter]
Resolve = Callable[[Body, Service, CallOrigin, bytes], Awaitable[tuple[Body, MakeFormatter[Body]]]]


async def generate(
    http_request: HttpRequest, api: GenerationApi[Body], origin: CallOrigin | None = None
) -> Response:
    """Read and admit a request, or raise `HttpError`; the reply runs it."""
    service = service_of(http_request)
    service.lifecycle.check_admission()
    started_s = service.clock()
    body = await read_json(http_request, api.body_type, service.max_body_bytes)
    call = await admit(http_request, api, body, origin or CallOrigin.here())
    return StreamingReply(service, call, started_s)


async def admit(
    http_request: HttpRequest, api: GenerationApi[Body], body: Body, origin: CallOrigin
) -> AdmittedCall:
    """Return what the engine and the reply need of a request, or raise `HttpError`."""
    service = service_of(http_request)
    service.ignored_fields.note(body)
    adapter = service.adapter_of(body.model, body.lora_path)
    if body.return_routed_experts and not service.boot.model.return_routed_experts:
        raise errors.invalid(
            "return_routed_experts",
            "the experts of tokens are not kept here; remove return_routed_experts, or, for a "
            "mixture of experts, start the engine with --enable-return-routed-experts "
            "(model.return_routed_experts)",
        )
    make_formatter = api.make_formatter
    if api.resolve is not None:
        owner = key_digest(http_request)
        body, make_formatter = await api.resolve(body, service, origin, owner)
    call = await asyncio.to_thread(api.prepare, body, service)
    if body.truncate_prompt_tokens is not None:
        call = await asyncio.to_thread(_truncated, call, body, service)
    grammar = await service.grammars.translate(*call.constraint) if call.constraint else None
    rules = BodyRules()
    if (field := rule_field(body)) is not None:
        if grammar is not None:
            message = f"{field} cannot be combined with structured output; write it as a constraint"
            raise errors.invalid(field, message)
        rules = await asyncio.to_thread(read_rules, body, service.text, call.eos_token_ids)
    label = http_request.headers.get(names.HEADER_LABEL, "").strip()
    if label not in service.boot.server.request_labels:
        label = ""  # clients may invent any number, and each has metric series of its own
    max_steps = _max_steps(body, http_request)
    sampling = _sampling(body, service.text, rules, origin.seed)
    made = _requests(body, call, service, sampling, grammar, label, max_steps, origin)
    requests = tuple(replace(one, adapter=adapter) for one in made) if adapter else made
    if body.return_routed_experts:
        _check_routed_bytes(requests, service.routed_token_bytes)
    vocabulary = service.text.vocabulary
    prompt_tokens = sum(len(token_ids) for token_ids, _ in call.prompts)
    name = adapter or service.served_name
    head = ResponseHead(origin.request_id, origin.created, name, prompt_tokens)
    choices = _choices(body, call, requests, vocabulary)
    formatter = make_formatter(body, head, vocabulary)
    return AdmittedCall(origin.request_id, body, requests, choices, formatter)


def _truncated(call: PreparedCall, body: GenerationBody, service: Service) -> PreparedCall:
    """Cut prompts to their last tokens, or to their first, as vLLM does."""
    most = body.truncate_prompt_tokens
    if most in (None, AS_MANY_AS_FIT):
        most = max(service.engine.context_length - max(body.requested_tokens or 1, 1), 1)
    part = slice(most) if body.truncation_side == "right" else slice(-most, None)
    prompts = [
        (ids, text) if len(ids) <= most else (ids[part], text and service.text.decode(ids[part]))
        for ids, text in call.prompts
    ]
    return replace(call, prompts=tuple(prompts))


def _choices(
    body: GenerationBody,
    call: PreparedCall,
    requests: tuple[Request, ...],
    vocabulary: Vocabulary,
) -> list[OutputProcessor]:
    """Return the processors of the outputs of `requests`."""
    count, stop = body.n or 1, tuple(body.stop or ())
    visible_ids = _visible_ids(body, call, vocabulary)
    choices = [
        OutputProcessor(
            index,
            vocabulary,
            stop,
            call.prompts[index // count][1],
            request.prompt_ids,
            call.make_parser(),
            visible_ids,
            body.min_tokens or 0,
            bool(body.include_stop_str_in_output),
        )
        for index, request in enumerate(requests)
    ]
    if body.returns_token_ids:
        for choice in choices:
            choice.returned_ids = []
    return choices


def _visible_ids(
    body: GenerationBody, call: PreparedCall, vocabulary: Vocabulary
) -> frozenset[int]:
    """Return the special tokens whose spelling is text; as in vLLM, one that ends it is not."""
    if body.skip_special_tokens is not False:
        return call.visible_ids
    ends = frozenset() if body.ignore_eos else call.eos_token_ids
    return call.visible_ids | vocabulary.special_ids - ends - {*(body.stop_token_ids or ())}


def _requests(
    body: GenerationBody,
    call: PreparedCall,
    service: Service,
    base: SamplingParams,
    grammar: TranslatedGrammar | None,
    label: str,
    max_steps: int | None,
    origin: CallOrigin,
) -> tuple[Request, ...]:
    """Return the engine's requests, one for each choice, with ids of their own.

    An `HttpError` names the field that exceeds a limit, the limit and the remedy.
    """
    count, field, prompts = body.n or 1, body.prompt_field, call.prompts
    if (sequences := len(prompts) * count) > service.max_sequences:
        raise errors.invalid(
            "n",
            f"the request needs {sequences} sequences (prompts times n); this engine accepts at "
            f"most {service.max_sequences}; send fewer prompts or a smaller n",
        )
    _check_resumed_count(origin, len(prompts), sequences)
    request_id, asks = uuid.uuid4().hex, bool(body.return_routed_experts)
    salt, has_priorities = body.cache_salt or "", service.boot.scheduling.priority
    place = queue_order(body.priority or 0, service.clock()) if has_priorities else 0
    requests: list[Request] = []
    for number, (prompt_ids, _) in enumerate(prompts):
        if not prompt_ids:
            raise errors.invalid(field, f"{field} has no tokens; send at least one")
        wanted = origin.max_tokens[number] if origin.max_tokens else body.requested_tokens
        max_tokens = _max_tokens(len(prompt_ids), body, wanted, service.engine.context_length)
        _check_vocabulary(field, prompt_ids, service.text.vocab_size)
        for index in range(count):
            sampling = replace(base, seed=sequence_seed(base.seed, index), max_tokens=max_tokens)
            so_far = origin.choices[len(requests)] if origin.choices else NOTHING_SO_FAR
            if so_far.has_begun:  # they were sent
                sampling = replace(sampling, prompt_logprobs=None)
            name, begun = f"{request_id}-{len(requests)}", so_far.token_ids
            options = label, max_steps, asks, begun, grammar, call.eos_token_ids, place, salt
            requests.append(Request(name, prompt_ids, sampling, None, *options))
    return tuple(requests)


def _check_resumed_count(origin: CallOrigin, prompts: int, sequences: int) -> None:
    """Refuse a resume that does not have what another engine has done of every choice."""
    if origin.max_tokens and len(origin.max_tokens) != prompts:
        message = f"max_tokens has {len(origin.max_tokens)} numbers for {prompts} prompts"
        raise errors.invalid("max_tokens", message, "invalid_resume")
    if origin.choices and len(origin.choices) != sequences:
        message = f"resume has {len(origin.choices)} choices; the request has {sequences}"
        raise errors.invalid("resume", message, "invalid_resume")


def _check_routed_bytes(requests: tuple[Request, ...], token_bytes: int) -> None:
    """Refuse more ids of experts than one request may have."""
    tokens = sum(len(each.prompt_ids) + each.sampling.max_tokens for each in requests)
    if (wanted := tokens * token_bytes) > MAX_BYTES:
        raise errors.invalid(
            "return_routed_experts",
            f"the experts of {tokens} tokens (prompts and max_tokens of all choices) take up to "
            f"{wanted} bytes; one request may return {MAX_BYTES}; send fewer prompts, a smaller n "
            "or fewer tokens",
        )


def _max_steps(body: GenerationBody, http_request: HttpRequest) -> int | None:
    """The limit of draft steps: the field of the body, else the header, else none."""
    if body.speculation is not None and body.speculation.max_steps is not None:
        return body.speculation.max_steps
    text = http_request.headers.get(names.HEADER_MAX_STEPS)
    if text is None:
        return None
    if not MAX_STEPS_PATTERN.fullmatch(text):
        shown = text[: errors.SHOWN_VALUE_CHARS]
        raise errors.invalid(
            names.HEADER_MAX_STEPS,
            f"{names.HEADER_MAX_STEPS} is {shown!r}; send a number of draft steps, 0 or more",
        )
    return int(text)


def sequence_seed(seed: int, index: int) -> int:
    """Return the seed of choice `index` of one prompt; choice 0 uses the request's own seed."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _sampling(
    body: GenerationBody, text: TextProcessor, rules: BodyRules, assigned_seed: int | None
) -> SamplingParams:
    defaults: dict[str, Any] = asdict(text.defaults)
    chosen = defaults | body.model_dump(include={*defaults}, exclude_none=True)
    if chosen["temperature"] < GREEDY_BELOW:
        chosen["temperature"] = 0.0
    chosen["top_p"] = max(chosen["top_p"], LEAST_TOP_P)
    biases = {int(token_id): bias for token_id, bias in (body.logit_bias or {}).items()}
    _check_vocabulary("logit_bias", tuple(biases), text.vocab_size)
    seed = assigned_seed if body.seed is None else body.seed
    return SamplingParams(
        seed=secrets.randbits(63) if seed is None else seed & SEED_MASK,
        max_tokens=1,
        **chosen,
        logit_bias=biases,
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=body.num_logprobs,
        prompt_logprobs=body.num_prompt_logprobs,
        min_tokens=body.min_tokens or 0,
        bad_words=rules.bad_words,
        allowed_token_ids=rules.allowed_token_ids,
    )


def _check_vocabulary(field: str, token_ids: tuple[int, ...], vocab_size: int) -> None:
    wrong = [token_id for token_id in token_ids if not 0 <= token_id < vocab_size]
    if wrong:
        raise errors.invalid(
            field, f"{field} has token id {wrong[0]}; valid ids are 0 to {vocab_size - 1}"
        )


def _max_tokens(
    prompt_tokens: int, body: GenerationBody, requested: int | None, context_length: int
) -> int:
    """Return how many tokens to generate after a prompt: as requested, or by default what fits."""
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
        requested = min(body.default_max_tokens or room, room)
    if (body.min_tokens or 0) > requested:
        raise errors.invalid(
            "min_tokens",
            f"min_tokens is {body.min_tokens}, and at most {requested} tokens are generated; lower "
            f"it, or raise {body.length_field}",
        )
    if requested > room:
        raise errors.too_long(
            f"{body.prompt_field} has {prompt_tokens} tokens and {body.length_field} is "
            f"{requested}; the model's context is {context_length} tokens; set "
            f"{body.length_field} to at most {room}",
            body.length_field,
        )
    return requested
