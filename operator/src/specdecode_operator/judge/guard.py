"""What a trial must show, and how much error it may spend on showing it."""

from dataclasses import dataclass
from enum import StrEnum


class Aim(StrEnum):
    """What a candidate must show to be promoted."""

    GAIN = "Gain"  # a recommendation: at least `min_gain` better
    NO_LOSS = "NoLoss"  # a person's own edit: not worse than `margin`


@dataclass(frozen=True, slots=True)
class Guard:
    """Bounds of one trial. Shares are fractions of 1, so 0.03 is 3 %.

    Raises:
        ValueError: a bound that cannot be kept, with its name, value and remedy.
    """

    aim: Aim = Aim.GAIN
    min_gain: float = 0.03  # of decode seconds per token, to be worth a change
    margin: float = 0.02  # what may be lost where no loss is the aim
    alpha: float = 0.02  # a candidate that is no worse is rolled back
    promote_alpha: float = 0.01  # a candidate that is no better is promoted; see `wealth`
    min_requests: int = 200  # in each arm
    min_stratum_requests: int = 20  # in each arm, for a stratum to count
    min_duration_s: float = 600.0
    max_duration_s: float = 7200.0
    min_coverage: float = 0.8  # of the work, by strata that count
    min_pairs: int = 6  # of blocks, where the arms take turns
    pod_spread: float = 0.01  # between equal pods, where each pod has one arm only
    tail_rise: float = 0.025  # of the share above the baseline's 95th percentile: 5 % to 7.5 %
    accept_drop: float = 0.2  # of tokens per round, for the early alarm
    max_restarts: int = 2  # of the candidate's pods beyond the baseline's

    def __post_init__(self) -> None:
        for name in ("alpha", "promote_alpha"):
            if not 0.0 < getattr(self, name) < 0.5:
                _refuse(name, getattr(self, name), "between 0 and 0.5")
        for name in ("min_gain", "margin", "min_coverage", "tail_rise", "accept_drop"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                _refuse(name, getattr(self, name), "between 0 and 1")
        if self.max_duration_s <= self.min_duration_s:
            _refuse("max_duration_s", self.max_duration_s, f"above {self.min_duration_s} seconds")


def _refuse(name: str, value: float, bounds: str) -> None:
    raise ValueError(f"guard: {name} is {value}; set it {bounds}")
