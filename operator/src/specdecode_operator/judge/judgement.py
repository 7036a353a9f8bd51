"""What a trial came to, with all that the verdict rests on."""

import math
from dataclasses import dataclass
from enum import StrEnum

from specdecode_operator.judge.evidence import Stratum

FARTHEST = 20.0
"""Of a logarithm; bounds beyond it contain no information."""


class Verdict(StrEnum):
    """What to do with the candidate now."""

    CONTINUE = "Continue"
    PROMOTE = "Promote"
    ROLL_BACK = "RollBack"
    INCONCLUSIVE = "Inconclusive"  # the end: keep the old
    NO_DATA = "NoData"  # hold: neither promote nor widen


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the bounds that hold at every look, at their own error each."""

    estimate: float
    lower: float
    upper: float

    @classmethod
    def of_log_ratio(cls, centre: float, low: float, high: float) -> "Interval":
        """The gain, 1 - ratio, from log(candidate / baseline) and its bounds."""
        gains = (-math.expm1(min(bound, FARTHEST)) for bound in (centre, high, low))
        return cls(*gains)


@dataclass(frozen=True, slots=True)
class StratumEffect:
    """The result of one stratum: its share of the work, and its gain where it counts."""

    stratum: Stratum
    baseline_requests: float
    candidate_requests: float
    share: float
    gain: float | None


@dataclass(frozen=True, slots=True)
class Rail:
    """One guard rail: both arms' rates, and whether the candidate is shown to be over it."""

    name: str
    baseline: float
    candidate: float
    limit: float
    is_broken: bool


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict, and its evidence. `gain` is 1 - candidate/baseline seconds per token.

    `first_token` is the gain in the mean time to first token. None: not known yet.
    """

    verdict: Verdict
    reason: str  # CamelCase
    message: str
    gain: Interval | None = None
    first_token: Interval | None = None
    baseline_requests: float = 0.0
    candidate_requests: float = 0.0
    strata: tuple[StratumEffect, ...] = ()
    coverage: float = 0.0  # share of the work in strata that count
    rails: tuple[Rail, ...] = ()
    pairs: int = 0  # of turns, where the arms took turns
    elapsed_s: float = 0.0
