"""What a trial must show, and how much error it may spend on showing it."""

import math
from dataclasses import dataclass
from enum import StrEnum

PROMOTE_ALPHA = 0.004
"""Most that a trial may spend on promoting a candidate that is no better."""
FALLEN_PAIRS = 2
"""Fewest that show `AcceptLengthFell` in turns: content can change in one."""


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
    first_token_margin: float = 0.1  # what may be lost of the mean time to first token
    alpha: float = 0.01  # a candidate that is no worse is rolled back
    promote_alpha: float = (
        PROMOTE_ALPHA  # a candidate that is no better is promoted; see `alpha_budget`
    )
    edit_alpha: float = 0.02  # an edit that loses more than `margin` is promoted
    min_requests: int = 200  # in each arm
    min_stratum_requests: int = 20  # in each arm, for a stratum to count
    min_duration_s: float = 600.0  # before a promotion
    max_duration_s: float = 7200.0
    min_coverage: float = 0.8  # of the work, by strata that count
    min_pairs: int = 6  # of turns, where the arms take turns
    fallen_pairs: int = FALLEN_PAIRS
    tail_rise: float = 0.5  # growth of the share above the baseline's 95th percentile
    max_restarts: int = 2  # of the candidate's pods beyond the baseline's
    restart_failures: int = 64  # failed requests that one restart explains

    def __post_init__(self) -> None:
        for name in ("alpha", "promote_alpha", "edit_alpha"):
            _check(name, getattr(self, name), 1e-9, 0.49)
        for name in (
            "min_gain",
            "margin",
            "first_token_margin",
            "min_coverage",
        ):
            _check(name, getattr(self, name), 0.0, 1.0)
        _check("tail_rise", self.tail_rise, 0.01, 100.0)
        for name in ("min_requests", "min_stratum_requests", "min_pairs"):
            _check(name, getattr(self, name), 2.0, math.inf)
        _check("fallen_pairs", self.fallen_pairs, 1.0, math.inf)
        for name in ("min_duration_s", "max_restarts", "restart_failures"):
            _check(name, getattr(self, name), 0.0, math.inf)
        _check("max_duration_s", self.max_duration_s, self.min_duration_s, math.inf)

    # What may be rolled back wrongly is shared: a third for the gain and for time to first token
    # each, a third for the guardrails. Early alarms need a factor that no load explains.

    @property
    def win_alpha(self) -> float:
        """For the promotion that the aim needs."""
        return self.promote_alpha if self.aim is Aim.GAIN else self.edit_alpha

    @property
    def loss_alpha(self) -> float:
        """For calling the candidate slower, in decode time or in time to first token."""
        return self.alpha / 3.0

    @property
    def rail_alpha(self) -> float:
        """For all guardrails together."""
        return self.alpha / 3.0


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise ValueError(f"guard: {name} is {value}; set it between {least:g} and {most:g}")
