"""What the engine counts over its life, in all and per range of batch sizes; and its load.

    load = (running + waiting requests) / (max_running_requests x recent accept length)

A decode step adds as many tokens to each request as the accept length, so a request of an engine
with twice the accept length needs half the steps. Requests by `max_running_requests` alone would be
the same for both, and an autoscaler that keeps that level lets the time per token double when the
accept length halves. With the division, a constant load is a constant time per token.

1 is a full engine without speculation. A full engine with accept length 3 has 1/3, and 2/3 with as
many requests waiting. A target is the wanted share of `max_running_requests`, divided by the accept
length at which the target latency was measured: 0.8 / 3.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from itertools import compress

from specdecode_api.metrics import batch_bucket
from specdecode_engine.adaptive.acceptance import count_by_position
from specdecode_engine.adaptive.policy import Decision, Feedback, Reason

MEMORY_STEPS = 1000.0  # request steps after which the weight of an old step is 1/e


def load(requests: int, max_running: int, accept_length: float) -> float:
    """Compute the load; 0 before the engine is loaded, when `max_running` is 0."""
    return requests / (max_running * max(1.0, accept_length)) if max_running else 0.0


@dataclass(slots=True)
class RecentSteps:
    """Tokens and request steps, exponentially decayed."""

    tokens: float = 0.0
    request_steps: float = 0.0

    def count(self, tokens: int, request_steps: int) -> None:
        """Count a decode step of `request_steps` requests that added `tokens` to their answers.

        Both decay alike, so that the accept length is a ratio of sums: a mean of ratios would give
        a step of one request the weight of a step of many.
        """
        kept = math.exp(-request_steps / MEMORY_STEPS)
        self.tokens = self.tokens * kept + tokens
        self.request_steps = self.request_steps * kept + request_steps

    @property
    def accept_length(self) -> float:
        """Tokens that a decode step adds to a request; 1 before the first step."""
        return self.tokens / self.request_steps if self.request_steps else 1.0


@dataclass(slots=True)
class DecodeTotals:
    """Monotonic totals of decode steps.

    `request_steps` counts a step once per request in it, so that `emitted_tokens` divided by it is
    the accept length, the bonus token included.
    """

    steps: int = 0
    request_steps: int = 0
    drafted_tokens: int = 0
    verified_tokens: int = 0
    accepted_tokens: int = 0
    emitted_tokens: int = 0
    seconds: float = 0.0

    @property
    def wasted_tokens(self) -> int:
        """Drafted tokens that were not accepted: rejected by the target, or not verified."""
        return self.drafted_tokens - self.accepted_tokens

    @property
    def accept_length(self) -> float:
        """Tokens that one decode step adds to one request; 0 before the first step."""
        return self.emitted_tokens / self.request_steps if self.request_steps else 0.0


@dataclass(slots=True)
class StepTotals:
    """Monotonic totals of the decode steps with one number of draft steps, in one batch bucket."""

    steps: int = 0
    request_steps: int = 0
    busy_seconds: float = 0.0


@dataclass(slots=True)
class SourceTotals:
    """Monotonic totals of the draft tokens of one source."""

    drafted: int = 0
    accepted: int = 0


@dataclass(slots=True)
class PositionStats:
    """How often a draft position followed accepted tokens only, and how often it was accepted."""

    reached: int = 0
    accepted: int = 0


@dataclass(slots=True)
class Counters:
    """Owned by the engine core."""

    steps: int = 0
    mixed_steps: int = 0  # decode steps whose forward computed prompts too
    out_of_memory: dict[str, int] = field(default_factory=lambda: defaultdict(int))  # by outcome
    drafted_request_steps: int = 0
    unreachable_steps: int = 0  # decode steps without a candidate within the limit of their time
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0
    recent: RecentSteps = field(default_factory=RecentSteps)
    ranges: dict[int, DecodeTotals] = field(  # by lower bound
        default_factory=lambda: defaultdict(DecodeTotals)
    )
    sources: dict[str, SourceTotals] = field(  # "model" or "ngram"
        default_factory=lambda: defaultdict(SourceTotals)
    )
    verify_rows: Counter[int] = field(default_factory=Counter)  # request steps by rows verified
    switches: dict[tuple[int, Reason], int] = field(default_factory=lambda: defaultdict(int))
    buckets: dict[tuple[int, int], StepTotals] = field(  # by batch bucket, draft steps
        default_factory=lambda: defaultdict(StepTotals)
    )
    positions: dict[tuple[int, int], PositionStats] = field(
        default_factory=lambda: defaultdict(PositionStats)
    )
    latest: Decision | None = None  # of the newest decode step

    @property
    def decode(self) -> DecodeTotals:
        """Totals of all ranges, as of now."""
        rows = [astuple(totals) for totals in self.ranges.values()]
        return DecodeTotals(*map(sum, zip(*rows, strict=True)))

    def forget_draft(self) -> None:
        """Start the acceptance by position at 0: the draft was exchanged."""
        self.positions.clear()

    def decide(self, decision: Decision) -> None:
        """Record the decision of a step; a change of draft steps is a switch."""
        if self.latest is not None and self.latest.num_steps != decision.num_steps:
            self.switches[decision.range_start, decision.reason] += 1
        if decision.reason is Reason.UNREACHABLE:
            self.unreachable_steps += 1
        self.latest = decision

    def count(
        self,
        decision: Decision,
        seconds: float,
        num_verify_rows: Sequence[int],
        emitted: Sequence[int],
        drafted: Sequence[int],
        is_ngram: Sequence[bool],
    ) -> None:
        """Count a finished step, in total, for the range that decided it, and by source.

        Args:
            num_verify_rows: verified draft tokens and the root, by request.
            emitted: accepted draft tokens and the bonus, by request.
            drafted: tokens drafted, by request.
            is_ngram: whether NGRAM drafted them, by request.
        """
        requests, emitted_tokens, drafted_tokens = len(emitted), sum(emitted), sum(drafted)
        accepted_tokens = emitted_tokens - requests
        verified_tokens = sum(num_verify_rows) - requests
        totals = self.ranges[decision.range_start]
        totals.steps += 1
        totals.request_steps += requests
        totals.drafted_tokens += drafted_tokens
        totals.verified_tokens += verified_tokens
        totals.accepted_tokens += accepted_tokens
        totals.emitted_tokens += emitted_tokens
        totals.seconds += seconds
        self.drafted_request_steps += requests - drafted.count(0)
        for rows in set(num_verify_rows):  # few different numbers
            self.verify_rows[rows] += num_verify_rows.count(rows)
        self.recent.count(emitted_tokens, requests)
        found = hits = 0
        if any(is_ngram):
            found = sum(compress(drafted, is_ngram))
            hits = sum(compress(emitted, is_ngram)) - sum(is_ngram)
            self._count_source("ngram", found, hits)
        self._count_source("model", drafted_tokens - found, accepted_tokens - hits)

    def _count_source(self, source: str, drafted: int, accepted: int) -> None:
        if drafted:
            totals = self.sources[source]
            totals.drafted += drafted
            totals.accepted += accepted

    def learn(self, feedback: Feedback) -> None:
        """Count what a finished step measured of its cost and its draft, under any policy."""
        bucket, num_steps = batch_bucket(feedback.batch_size), feedback.decision.num_steps
        if feedback.has_cost():
            totals = self.buckets[bucket, num_steps]
            totals.steps += 1
            totals.request_steps += feedback.batch_size
            totals.busy_seconds += feedback.seconds
        reached, accepted = count_by_position(feedback.accepted, num_steps, feedback.partial)
        for place, trials in enumerate(reached):
            position = self.positions[bucket, place + 1]
            position.reached += trials
            position.accepted += accepted[place]
