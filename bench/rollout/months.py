"""A loop that tries for months: does a candidate without any gain ever win by luck?

The bounds of the judge's pairs, over pairs of equal arms, looked at after each: the worst case,
without the floors that a promotion needs besides.
"""

from dataclasses import dataclass

import numpy as np

from specdecode_operator.judge.confidence import student_radius
from specdecode_operator.judge.wealth import Wealth, earn, spend

TRIALS, PAIRS = 100, 60


@dataclass(frozen=True, slots=True)
class Loop:
    """Share of loops with any wrong promotion, and wrong promotions in each."""

    any_wrong: float
    wrong: float


def try_for_months(loops: int, seed: int, has_budget: bool) -> Loop:
    """Try 100 equal candidates one after the other, many times over."""
    rng = np.random.default_rng([seed, has_budget])
    counts = [_one_loop(rng, has_budget) for _ in range(loops)]
    return Loop(float(np.mean([count > 0 for count in counts])), float(np.mean(counts)))


def _one_loop(rng: np.random.Generator, has_budget: bool) -> int:
    wealth, wrong = Wealth(), 0
    counts = np.arange(1, PAIRS + 1)
    for _ in range(TRIALS):
        grant = spend(wealth)
        wealth = grant.wealth
        alpha = grant.alpha if has_budget else 0.01
        pairs = rng.normal(size=PAIRS)
        means = np.cumsum(pairs) / counts
        squares = np.cumsum(pairs**2) - counts * means**2
        spreads = np.sqrt(squares[1:] / (counts[1:] - 1))
        radii = [student_radius(1.0, int(count), alpha) for count in counts[1:]]
        if np.any(means[1:] > np.array(radii) * spreads):
            wealth, wrong = earn(wealth), wrong + 1
    return wrong
