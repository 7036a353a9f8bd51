"""Chooses, for each request and step, the draft model's tokens or those that NGRAM found.

    expected accepted tokens of a draft d positions deep = r + r² + … + r^d

r is the chance that a position is accepted given that the one before was. A request has an
estimate for each source: its own recent trials, shrunk towards those of all requests. Tokens that
NGRAM found count whether they were verified or not: the text that followed decides them. The draft
model is measured only where it drafts, so that a request returns to it periodically.

The draft model drafts for a whole batch or not at all. It is left out of a step where

    more tokens with it  <  rate * more seconds with it

rate being the tokens per second of the latest steps: what the same time is worth otherwise. Tokens
per second of this step alone would be too little: where NGRAM is about to match again, time is
worth more than what one step without a match gives.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specdecode_engine.adaptive.cost import CostModel, CostPoint, CostShape

# Of all requests, before anything is known of a source. The draft model's is that of a good one: it
# is measured only where it drafts, and would not be where it seems to be worth little.
DRAFT_PRIOR_RATE, NGRAM_PRIOR_RATE, PRIOR_TRIALS = 0.8, 0.5, 8.0
SHRINKAGE_TRIALS = 4.0  # weight of the rate of all requests in that of one
OWN_MEMORY_STEPS, ALL_MEMORY_STEPS = 8, 256
"""Steps of one request, and of all requests, after which the weight of an old step is 1/e."""
LEAST_DRAFT_STEPS = 4  # with the draft model, before their time counts
RATE_MEMORY_STEPS = 8  # after which the weight of an old step in the rate is 1/e
NGRAM_SHAPE = CostShape(draft_share=0.0)  # of steps without the draft model
PROBE_INTERVAL = 64  # most steps of a request from one with the draft model to the next


class Trials(NamedTuple):
    """Drafted positions that followed accepted ones only, and how many of them were accepted."""

    tried: int
    accepted: int

    @classmethod
    def of(cls, accepted: int, depth: int) -> "Trials":
        """Return those of a draft of which the first `accepted` of `depth` positions agreed."""
        return cls(accepted + (accepted < depth), accepted)


NO_TRIALS = Trials(0, 0)


@dataclass(slots=True)
class DecayedTrials:
    """Trials, exponentially decayed."""

    tried: float = 0.0
    accepted: float = 0.0

    def add(self, trials: Trials, keep: float) -> None:
        """Decay the past by `keep` and count one step."""
        self.tried = self.tried * keep + trials.tried
        self.accepted = self.accepted * keep + trials.accepted

    def rate(self, prior: float, weight: float) -> float:
        """Return the acceptance rate, shrunk towards a prior with the weight of so many trials."""
        return (self.accepted + prior * weight) / (self.tried + weight)


@dataclass(slots=True)
class RequestTrials:
    """What one request has shown of both sources."""

    draft: DecayedTrials = field(default_factory=DecayedTrials)
    ngram: DecayedTrials = field(default_factory=DecayedTrials)
    steps_without_draft: int = 0  # in a row


class RequestDrafts(NamedTuple):
    """A request that is about to decode, and what each source has for it."""

    own: RequestTrials
    draft_depth: int  # positions that the draft model would draft; 0: none are verified
    ngram_depth: int  # of what NGRAM found; 0: nothing
    ngram_tokens: int


class TimedStep(NamedTuple):
    """A decode step, as far as its cost is concerned."""

    batch_size: int
    drafted: int  # draft steps of the draft model; without it, NGRAM's tokens, see `mean_tokens`
    kv_tokens: int
    seconds: float
    tokens: float  # that a request got on average


class DraftSources:
    """The choice between the sources, what all requests have shown of them, and their costs.

    Args:
        drafts_blocks: see `CostShape`.
    """

    def __init__(self, *, drafts_blocks: bool = False) -> None:
        self._draft = DecayedTrials()
        self._ngram = DecayedTrials()
        self._shape = CostShape(drafts_blocks=drafts_blocks)
        self._cost = CostModel(shape=self._shape)  # of steps with the draft model
        # Of steps without it, by the tokens that NGRAM found for a request.
        self._ngram_cost = CostModel(shape=NGRAM_SHAPE)
        self._draft_steps = 0  # with the draft model
        self._tokens = self._seconds = 0.0  # of one request in the latest steps, decayed

    def start_from(self, costs: Iterable[CostPoint]) -> None:
        """Begin with the cost of steps with the draft model, measured before the engine serves."""
        self._cost = CostModel(costs, self._shape)
        self._draft_steps = LEAST_DRAFT_STEPS if self._cost.is_measured else 0

    def choose(
        self, requests: Sequence[RequestDrafts], num_steps: int, kv_tokens: int
    ) -> tuple[bool, ...]:
        """Choose the requests that verify what the draft model drafts; without any, it is left out.

        Args:
            num_steps: draft steps that the draft model would draft.
            kv_tokens: with KV, over all requests.
        """
        draft_rate = self._draft.rate(DRAFT_PRIOR_RATE, PRIOR_TRIALS)
        ngram_rate = self._ngram.rate(NGRAM_PRIOR_RATE, PRIOR_TRIALS)
        drafted = [_expected(one.own.draft, draft_rate, one.draft_depth) for one in requests]
        found = [_expected(one.own.ngram, ngram_rate, one.ngram_depth) for one in requests]
        rests = [one.own.steps_without_draft if one.draft_depth else 0 for one in requests]
        is_due = max(rests) >= PROBE_INTERVAL
        # Requests that are soon due return together: the draft model drafts for all of them.
        longest = PROBE_INTERVAL // 2 if is_due else PROBE_INTERVAL
        columns = zip(requests, drafted, found, rests, strict=True)
        by_model = tuple(
            one.draft_depth > 0 and (mine >= other or rest >= longest)
            for one, mine, other, rest in columns
        )
        if is_due or not any(by_model) or self._draft_steps < LEAST_DRAFT_STEPS:
            return by_model  # without the draft model already, or before its time is known
        size, mean = len(requests), mean_tokens([one.ngram_tokens for one in requests])
        more_s = self._cost.seconds(size, num_steps, kv_tokens)
        more_s -= self._ngram_seconds(size, mean, kv_tokens)
        more_tokens = sum(map(max, drafted, found)) - sum(found)
        rate = size * self._tokens / self._seconds if self._seconds else 0.0
        return (False,) * size if more_tokens < rate * more_s else by_model

    def learn_cost(self, step: TimedStep, *, has_draft: bool) -> None:
        """Count the time of a step that shared it with no prompt.

        The first step with the draft model is one of a cold machine, and is not typical.
        """
        batch_size, drafted, kv_tokens, seconds, tokens = step
        if 0.0 < seconds < math.inf:
            keep = 1 - 1 / RATE_MEMORY_STEPS
            self._tokens = self._tokens * keep + tokens
            self._seconds = self._seconds * keep + seconds
        if not has_draft:
            self._ngram_cost.refine(batch_size, drafted, kv_tokens, seconds)
            return
        if self._draft_steps:
            self._cost.refine(batch_size, drafted, kv_tokens, seconds)
        self._draft_steps += 1

    def learn(self, own: RequestTrials, draft: Trials | None, ngram: Trials) -> None:
        """Count a step of one request; what a source did not show fades towards all requests.

        Args:
            draft: of the draft model; None: its tokens were not verified.
            ngram: of what NGRAM found.
        """
        own.steps_without_draft = own.steps_without_draft + 1 if draft is None else 0
        shown = ((own.draft, self._draft, draft), (own.ngram, self._ngram, ngram))
        for one, all_requests, trials in shown:
            one.add(trials or NO_TRIALS, 1 - 1 / OWN_MEMORY_STEPS)
            if trials is not None and trials.tried:
                all_requests.add(trials, 1 - 1 / ALL_MEMORY_STEPS)

    def forget_draft(self) -> None:
        """Drop what all requests have shown of the draft model: it was exchanged."""
        self._draft = DecayedTrials()

    def _ngram_seconds(self, batch_size: int, drafted: int, kv_tokens: int) -> float:
        """Expected seconds of a step without the draft model; at first that of plain decoding."""
        if self._ngram_cost.is_measured:
            return self._ngram_cost.seconds(batch_size, drafted, kv_tokens)
        more_rows = NGRAM_SHAPE.relative(batch_size, drafted) / NGRAM_SHAPE.relative(batch_size, 0)
        return self._cost.seconds(batch_size, 0, kv_tokens) * more_rows


def _expected(own: DecayedTrials, rate_of_all: float, depth: int) -> float:
    """Return the expected accepted tokens of a request's draft."""
    return expected_accepted(own.rate(rate_of_all, SHRINKAGE_TRIALS), depth)


def mean_tokens(counts: Sequence[int]) -> int:
    """Return the tokens of a request in a batch on average, rounded up."""
    return -(-sum(counts) // len(counts))


def expected_accepted(rate: float, depth: int) -> float:
    """Return the expected accepted tokens of a draft `depth` positions deep."""
    expected = 0.0
    for _ in range(depth):
        expected = rate * (1.0 + expected)
    return expected
