"""Requests while the engine works on them, and what the scheduler hands out per step; no torch."""

from dataclasses import dataclass, field
from typing import NamedTuple

from specdecode_engine.adaptive.draft_source import RequestTrials
from specdecode_engine.adaptive.policy import Decision
from specdecode_engine.batch.request import FinishReason, Request, TokenLogprobs


class RequestStats:
    """Decode steps of one request per batch bucket, under the table that set its draft steps.

    A request counts once, in the bucket of most of its decode steps, with its numbers there: the
    requests of a stratum are then independent of each other and ran at comparable batch sizes.
    `by_bucket` holds tokens, steps and seconds of each bucket.
    """

    __slots__ = ("by_bucket", "is_mixed", "table")

    def __init__(self) -> None:
        self.table = ""
        self.is_mixed = False  # whether steps under more than one table decoded it
        self.by_bucket: dict[int, list[float]] = {}

    def add(self, table: str, bucket: int, tokens: int, seconds: float) -> None:
        """Count a step: it kept `tokens` and took `seconds` for the whole batch."""
        if table != self.table:
            self.is_mixed = bool(self.table)
            self.table = table
        sums = self.by_bucket.get(bucket)
        if sums is None:
            sums = self.by_bucket[bucket] = [0, 0, 0.0]
        sums[0] += tokens
        sums[1] += 1
        sums[2] += seconds

    def main_bucket(self) -> int | None:
        """Return the bucket with the most steps, the smallest of equals; None without a step."""
        steps = {bucket: sums[1] for bucket, sums in self.by_bucket.items()}
        return max(steps, key=lambda bucket: (steps[bucket], -bucket)) if steps else None


@dataclass(slots=True)
class Sequence:
    """A request in the engine.

    `computed` counts the leading tokens whose target KV is present for sure. While a sequence
    decodes it is one less than the number of tokens: the last token, the bonus of the step before,
    has no KV. Steps that were launched but whose result the host has not seen may have added up to
    `in_flight_tokens` more tokens, and at least one each.

    `reusable` counts the leading tokens whose rows are right in the target and, right or zero, in
    the draft. It is less than `computed` while the draft lacks rows.

    `prompt_logprobs`, if requested, are those that the host has, from the prompt's second token on.
    They are kept across preemption, so that none is returned twice.
    """

    request: Request
    tokens: list[int]
    total_limit: int  # tokens, prompt included, at which the output is cut
    ending_ids: frozenset[int]  # tokens that end the output; such a token is its last one
    req_index: int | None = None
    pages: list[int] = field(default_factory=list)
    computed: int = 0
    matched: int = 0  # leading tokens taken from the prefix cache; set at admission
    cached_state: int | None = None  # with the state after `matched` tokens, if there are any
    saved: int = 0  # tokens before the latest cached state
    shared: int = 0  # tokens of cached pages at admission, of which `matched` have a state
    reusable: int = 0
    prefill_end: int = 0  # tokens to compute before the first decode step; set at admission
    in_flight_tokens: int = 0
    in_flight_steps: int = 0
    finish_reason: FinishReason | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    stats: RequestStats = field(default_factory=RequestStats)
    admitted_s: float | None = None  # when it first left the queue, in seconds of time.monotonic
    cached_tokens: int = 0  # `matched` then: a preempted sequence also finds its own rows
    skips_draft: bool = False  # whether its prompt does not pass the draft, which is unfit
    first_proposals: int = 0  # draft tokens at the first position that count as evidence
    source_trials: RequestTrials | None = None  # where NGRAM drafts next to a draft model

    @classmethod
    def of(cls, request: Request, eos_token_ids: frozenset[int] = frozenset()) -> "Sequence":
        """Start with the prompt, and with what another engine has generated."""
        limit = len(request.prompt_ids) + request.sampling.max_tokens
        tokens = [*request.prompt_ids, *request.output_ids]
        return cls(request, tokens, limit, request.ending_ids(eos_token_ids))

    def allowed_steps(self, num_steps: int) -> int:
        """Return how many of `num_steps` draft steps the request allows."""
        limit = self.request.max_steps
        return num_steps if limit is None or limit > num_steps else limit

    def useful_steps(self, num_steps: int) -> int:
        """Return how many of `num_steps` draft tokens can be part of the output.

        No more than the request allows, nor than it lacks before the bonus token, its last one.
        """
        room = self.total_limit - len(self.tokens) - self.in_flight_steps - 1
        return min(self.allowed_steps(num_steps), room)

    @property
    def output_tokens(self) -> int:
        """Tokens of the answer so far."""
        return len(self.tokens) - len(self.request.prompt_ids)

    @property
    def returned_tokens(self) -> int:
        """Tokens of the answer that this engine has generated."""
        return self.output_tokens - len(self.request.output_ids)

    def first_prompt_logprobs(self, kept: int) -> tuple[TokenLogprobs, ...] | None:
        """Return the prompt's logprobs, if requested, for the first output, of `kept` tokens."""
        if self.request.sampling.prompt_logprobs is None or self.returned_tokens != kept:
            return None
        return tuple(self.prompt_logprobs)

    @property
    def unscored_rows(self) -> range:
        """Rows whose logits are still needed to score the prompt; row i scores token i + 1."""
        is_requested = self.request.sampling.prompt_logprobs is not None
        end = len(self.request.prompt_ids) - 1 if is_requested else 0
        return range(min(len(self.prompt_logprobs), end), end)

    @property
    def skippable_tokens(self) -> int:
        """Leading tokens that need not be computed if the prefix cache has them."""
        unscored = self.unscored_rows
        return unscored.start if unscored else len(self.tokens)

    @property
    def is_prefilling(self) -> bool:
        """Whether the tokens it was admitted with are still being computed."""
        return self.computed < self.prefill_end

    @property
    def most_computed(self) -> int:
        """Bound of the tokens with KV once everything launched has run; exact if nothing is."""
        return len(self.tokens) - 1 + self.in_flight_tokens

    def check_stop(self, token_ids: tuple[int, ...]) -> tuple[int, FinishReason | None, int | None]:
        """Find the first new token that is a stop token or reaches the limit, in this order.

        Returns:
            How many of the tokens are kept, why the sequence ends there if it does, and its stop
            token.
        """
        room = self.total_limit - len(self.tokens)
        for index, token in enumerate(token_ids[:room], start=1):
            if token in self.ending_ids:
                return index, FinishReason.STOP, token
        if room > len(token_ids):
            return len(token_ids), None, None
        return room, FinishReason.LENGTH, None


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Prompt tokens [start, end) of one sequence to compute now.

    With `waits` the draft computes its rows of these, and of what waited before, later. The state
    of recurrent layers after these tokens is copied to `cached_state`, if one is given.
    """

    sequence: Sequence
    start: int
    end: int
    waits: bool = False
    cached_state: int | None = None

    @property
    def is_last(self) -> bool:
        """Whether the chunk reaches the end of the tokens, so that the next one can be sampled."""
        return self.end == len(self.sequence.tokens)


class SchedulerOutput(NamedTuple):
    """One step: the prefill chunks, then the decode batch and its draft steps."""

    chunks: tuple[PrefillChunk, ...]
    decoding: tuple[Sequence, ...]
    grown: tuple[Sequence, ...]  # of `decoding`, those that got pages for this step
    decision: Decision | None  # None where nothing decodes
    kv_tokens: int  # with KV over all that decode, as far as the host knows
    feeds_draft: bool = True  # whether decoding keeps what the draft reads

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all chunks."""
        return sum(chunk.end - chunk.start for chunk in self.chunks)

    @property
    def prompt_context(self) -> int:
        """Tokens before the chunks, the mean over the tokens of all chunks; 0 without any."""
        before = sum(chunk.start * (chunk.end - chunk.start) for chunk in self.chunks)
        return before // max(self.prompt_tokens, 1)

    @property
    def prompts_feed_draft(self) -> bool:
        """Whether the prompt of any chunk passes the draft."""
        return not all(chunk.sequence.skips_draft for chunk in self.chunks)

    @property
    def numbers(self) -> tuple[int, ...]:
        """What all ranks must agree on: equal for equal steps, and hardly for others."""
        decision = self.decision
        chosen = (-1, 0) if decision is None else (decision.num_steps, decision.sequence)
        rows = hash(tuple(one.req_index or 0 for one in self.decoding)) & 0xFFFFFFFF
        return self.prompt_tokens, len(self.decoding), rows, self.kv_tokens, *chosen

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self.chunks and not self.decoding
