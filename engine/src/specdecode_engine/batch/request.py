"""Requests to the engine and its outputs: token ids and numbers, no text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from specdecode_engine.grammar import Grammar, TranslatedGrammar

ExpertIds = NDArray[np.integer[Any]]
"""Ids of the experts of consecutive tokens: [tokens, layers with experts, top_k]."""


class FinishReason(StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token of a request is chosen, after validation; see `sampling`.

    `temperature` 0 is greedy. `top_k` 0 and `top_p` 1.0 are off. `repetition_penalty` 1.0 is off.
    `seed` is always set: the server draws one if the user gave none. `logprobs` None returns none,
    0 the sampled token's, n also those of the n likeliest; `prompt_logprobs` does the same for the
    prompt tokens. `max_tokens` 0 computes the prompt and generates nothing. Of the first
    `min_tokens` tokens none ends the output. `bad_words` are sequences of tokens that the output
    does not contain. Only `allowed_token_ids` are generated; None allows all. A request with a
    grammar has none of these three.
    """

    seed: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed_token_ids: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """One sequence to generate; a call with n > 1 makes n of these.

    Under a grammar the answer ends with EOS, and only where the grammar may end; `ignore_eos` puts
    that off as long as anything else may follow. `label` is what the user marked the request with;
    it only sorts what is counted. `max_steps` is the most draft tokens that one step may accept
    for the request: 0 turns speculation off, None sets no limit. The output does not depend on it.
    `return_routed_experts` returns the experts of every token that was computed; the engine must
    have been started for it. `output_ids` are the tokens of the answer that another engine has
    generated: they count as output, and outputs begin with the token after them.

    The server sets `translated_grammar`; it is compiled to `grammar` where the engine runs.
    `eos_token_ids` end the answer as those of the engine do: the tokenizer and the chat template
    name them, which the engine does not read.

    Requests with a lower `queue_order` start earlier; see `queue_order`. Requests share cached
    prefixes with those of the same `cache_salt` and `adapter` alone. `adapter` is the name of the
    LoRA adapter that computes the request, empty for the model without one.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    grammar: Grammar | None = None
    label: str = ""
    max_steps: int | None = None
    return_routed_experts: bool = False
    output_ids: tuple[int, ...] = ()
    translated_grammar: TranslatedGrammar | None = None
    eos_token_ids: frozenset[int] = frozenset()
    queue_order: int = 0
    cache_salt: str = field(default="", repr=False)  # it may be a secret of the client
    adapter: str = ""

    @property
    def has_grammar(self) -> bool:
        return self.grammar is not None or self.translated_grammar is not None

    def resumed(self, token_ids: Sequence[int]) -> "Request":
        """Return the request to an engine that begins after `token_ids`, which were generated."""
        if not token_ids:
            return self
        sampling = replace(self.sampling, prompt_logprobs=None)  # they came with the first token
        return replace(self, sampling=sampling, output_ids=(*self.output_ids, *token_ids))

    def ending_ids(self, eos_token_ids: frozenset[int] = frozenset()) -> frozenset[int]:
        """Return the tokens that end the output; `eos_token_ids` are those of the engine.

        A grammar cannot continue after EOS, so `ignore_eos` has no effect on a request with one.
        """
        if self.sampling.ignore_eos and not self.has_grammar:
            return self.sampling.stop_token_ids
        return self.sampling.stop_token_ids | eos_token_ids | self.eos_token_ids

    @property
    def is_unrestricted(self) -> bool:
        """Whether tokens follow the target's own distribution, which is what drafts predict.

        No adapter, grammar, bias, token rules or penalties change it, and no high temperature.
        """
        params = self.sampling
        return (
            self.grammar is None
            and not self.adapter
            and params.temperature <= 1.0
            and params.repetition_penalty == 1.0
            and params.presence_penalty == params.frequency_penalty == 0.0
            and not (params.logit_bias or params.bad_words or params.min_tokens)
            and params.allowed_token_ids is None
        )


AGEING_MS = 10_000


def queue_order(priority: int, arrived_s: float) -> int:
    """Return the place of a request in the queue: `arrived_ms + priority · AGEING_MS`.

    A lower priority starts earlier, as in vLLM. Waiting for `AGEING_MS` counts as much as one class
    of priority, so that later requests cannot keep one from starting for ever.

    Args:
        arrived_s: in seconds of one clock for all requests.
    """
    return round(1000 * arrived_s) + priority * AGEING_MS


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, from the target's unprocessed logits."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Output(NamedTuple):
    """Tokens that one step added to one request; the last output carries the finish reason.

    A stop token (EOS or one of `stop_token_ids`) that ended the request is the last of `token_ids`
    and is also in `stop_token_id`, so that the server can leave it out of the text. `error` is the
    reason why a request failed, and `grammar_fault` why its grammar did, if that is its finish
    reason. `prompt_logprobs`, if requested, are
    in the first output, from the prompt's second token on: nothing precedes the first. `table` is
    the hash of the table that was in force when the step was launched. `decode_steps` is 1 after
    a decode step and 0 after prefill, `drafted` and `accepted` count its draft tokens. `admitted_s`
    is when the request left the queue, in seconds of `time.monotonic`; `cached_tokens` counts the
    prompt tokens that the prefix cache had then. `routed_experts`, if requested, has the experts
    of the prompt's tokens with the first token, then of the token before each that is added.
    `suspended` is a request that waits for its grammar, to be compiled again: it has the tokens of
    the answer so far. The output of a suspended request adds no tokens.
    """

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    table: str = ""
    decode_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    grammar_fault: str | None = None
    admitted_s: float | None = None
    cached_tokens: int = 0
    routed_experts: ExpertIds | None = None
    suspended: Request | None = None

    @property
    def is_unfinished(self) -> bool:
        return self.finish_reason is None and self.suspended is None


class RequestRefused(Exception):
    """A request that cannot be served, now or ever; the message has the value and the remedy."""


class RequestTooLong(RequestRefused):
    """Prompt plus answer exceed the context or the memory: the client must ask for less."""


class QueueFull(RequestRefused):
    """Too many requests wait already: the client should come back later."""
