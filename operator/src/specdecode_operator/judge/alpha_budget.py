"""The error that promotions may cost over months: a loop that tries and tries must not win by luck.

Online alpha investing (Foster and Stine 2008) by ages, as in LORD++ (Ramdas, Yang, Wainwright and
Jordan 2017): trial t may promote wrongly with probability `spend(...)`. However many candidates
without a gain are tried, any of them is promoted with probability at most `initial`. Each promotion
adds `payout`, which keeps the expected share of wrong ones among all promotions of independent
trials below `initial` + `payout`.
"""

import math
from dataclasses import dataclass

from specdecode_operator.judge.guard import PROMOTE_ALPHA


@dataclass(frozen=True, slots=True)
class AlphaBudget:
    """State of the budget: plain numbers, to be kept in a status.

    Raises:
        ValueError: a share outside of 0 to 1, with its name and remedy.
    """

    initial: float = 0.05
    payout: float = 0.05
    trials: int = 0  # started so far
    promotions: tuple[int, ...] = ()  # the numbers of the trials that were promoted, from 1

    def __post_init__(self) -> None:
        for name in ("initial", "payout"):
            value = getattr(self, name)
            if not 0.0 < value < 1.0:
                raise ValueError(f"error budget: {name} is {value}; set it between 0 and 1")


@dataclass(frozen=True, slots=True)
class Grant:
    """What a trial may spend, and the budget after it began."""

    alpha: float
    alpha_budget: AlphaBudget


def spend(alpha_budget: AlphaBudget, most: float = PROMOTE_ALPHA) -> Grant:
    """Begin a trial: its `promote_alpha`, never above `most`."""
    trial = alpha_budget.trials + 1
    alpha = alpha_budget.initial * _share(trial)
    alpha += alpha_budget.payout * sum(_share(trial - earned) for earned in alpha_budget.promotions)
    return Grant(
        min(alpha, most),
        AlphaBudget(alpha_budget.initial, alpha_budget.payout, trial, alpha_budget.promotions),
    )


def earn(alpha_budget: AlphaBudget) -> AlphaBudget:
    """The trial begun last was promoted.

    Raises:
        ValueError: no trial began yet, or this one has earned already.
    """
    if alpha_budget.trials == 0 or alpha_budget.trials in alpha_budget.promotions:
        raise ValueError(
            f"error budget: trial {alpha_budget.trials} cannot earn; begin a trial first"
        )
    return AlphaBudget(
        alpha_budget.initial,
        alpha_budget.payout,
        alpha_budget.trials,
        (*alpha_budget.promotions, alpha_budget.trials),
    )


def _share(age: int) -> float:
    """Weights over ages 1, 2, 3, … that sum to 1, and fall slowly."""
    return 1.0 / math.log2(age + 1) - 1.0 / math.log2(age + 2)
