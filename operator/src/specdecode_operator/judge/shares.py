"""Shares of what should be rare, in both arms: slow observations, retracted requests.

The candidate's may be above the baseline's by a factor and a slack; only what is shown to be more
breaks the rail.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from specdecode_operator.judge.confidence import radius, student_radius, tuned_information
from specdecode_operator.judge.judgement import Rail

TYPICAL = 0.05  # a share for which the bounds should be tightest
LEAST_SPREAD = 0.005  # of a share between pairs

Shares = tuple[float, float]  # of the baseline, of the candidate


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the candidate may have: the baseline's share times `factor`, and `slack`."""

    name: str
    factor: float
    slack: float = 0.0

    def limit(self, old: float) -> float:
        """The most that the candidate's share may be."""
        return self.factor * old + self.slack


def check_share(
    allowed: Allowance, shares: Shares, counts: tuple[float, float], alpha: float
) -> Rail:
    """Check arms that ran side by side, by `counts` independent observations of each."""
    old, new = shares
    variance = _variance(new, counts[1]) + allowed.factor**2 * _variance(old, counts[0])
    tuned = tuned_information(allowed.limit(TYPICAL) - TYPICAL, alpha)
    worst = new - allowed.limit(old) - radius(variance, alpha, tuned)
    return Rail(allowed.name, old, new, allowed.limit(old), worst > 0.0)


def check_share_by_pair(
    allowed: Allowance, shares: Shares, by_pair: Sequence[Shares], alpha: float
) -> Rail:
    """Check arms that took turns: the mean over pairs of how far the candidate is over."""
    over = [new - allowed.limit(old) for old, new in by_pair]
    worst = -math.inf
    if len(over) >= 2:
        spread = max(statistics.stdev(over), LEAST_SPREAD)
        worst = statistics.mean(over) - student_radius(spread, len(over), alpha)
    return Rail(allowed.name, *shares, allowed.limit(shares[0]), worst > 0.0)


def _variance(share: float, count: float) -> float:
    """Of a share among `count`, with one success and one failure added, so never 0."""
    safe = (share * count + 1.0) / (count + 2.0)
    return safe * (1.0 - safe) / count
