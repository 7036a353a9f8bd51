"""Chooses, for each request and step, the draft model's tokens or those that NGRAM found.

    expected accepted tokens of a draft d positions deep = r + r² + … + r^d

r is the chance that a position is accepted given that the one before was. A request has an
estimate for each source: its own recent trials, shrunk towards those of all requests. Tokens that
NGRAM found count whether they were verified or not: the text that followed decides them. The draft
model is measured only where it drafts, so that a request returns to it periodically.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

PRIOR_RATE, PRIOR_TRIALS = 0.5, 8.0  # of all requests, before anything is known of a source
SHRINKAGE_TRIALS = 4.0  # weight of the rate of all requests in that of one
OWN_MEMORY_STEPS, ALL_MEMORY_STEPS = 16, 256
"""Steps of one request, and of all requests, after which the weight of an old step is 1/e."""
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


class DraftSources:
    """The choice between the sources, and what all requests have shown of them."""

    def __init__(self) -> None:
        self._draft = DecayedTrials()
        self._ngram = DecayedTrials()

    def prefers_ngram(self, own: RequestTrials, draft_depth: int, ngram_depth: int) -> bool:
        """Whether NGRAM's tokens are expected to give a request more accepted ones.

        Args:
            draft_depth: positions that the draft model would draft.
            ngram_depth: of what NGRAM found; 0: nothing.
        """
        if not ngram_depth or own.steps_without_draft >= PROBE_INTERVAL:
            return False
        drafted = expected_accepted(self._rate(own.draft, self._draft), draft_depth)
        return expected_accepted(self._rate(own.ngram, self._ngram), ngram_depth) > drafted

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

    @staticmethod
    def _rate(own: DecayedTrials, all_requests: DecayedTrials) -> float:
        return own.rate(all_requests.rate(PRIOR_RATE, PRIOR_TRIALS), SHRINKAGE_TRIALS)


def expected_accepted(rate: float, depth: int) -> float:
    """Return the expected accepted tokens of a draft `depth` positions deep."""
    expected = 0.0
    for _ in range(depth):
        expected = rate * (1.0 + expected)
    return expected
