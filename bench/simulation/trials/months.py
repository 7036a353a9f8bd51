"""A loop that tries for months: does a candidate without any gain ever win by luck?

The bounds of the judge's pairs, over pairs of equal arms, looked at after each: the worst case,
without the floors that a promotion needs besides.
"""

from dataclasses import dataclass

import numpy as np

from specdecode_operator.judge.alpha_budget import AlphaBudget, earn, spend
from specdecode_operator.judge.guard import PROMOTE_ALPHA
from specdecode_operator.judge.randomization import is_above

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
    alpha_budget, wrong = AlphaBudget(), 0
    for _ in range(TRIALS):
        grant = spend(alpha_budget)
        alpha_budget = grant.alpha_budget
        alpha = grant.alpha if has_budget else PROMOTE_ALPHA
        if is_above(rng.normal(size=PAIRS).tolist(), alpha):
            alpha_budget, wrong = earn(alpha_budget), wrong + 1
    return wrong
