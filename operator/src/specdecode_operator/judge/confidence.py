"""Confidence sequences: bounds that hold at every look at once, so looking often costs nothing.

`radius` is the one-sided normal mixture of Robbins (1970), in the closed form of Howard, Ramdas,
McAuliffe and Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences" (2021),
equation 3.7. Time is information, 1 / variance, so arms of any size and several strata are one
case: the estimate times its information has independent increments (Jennison and Turnbull 1997).

`student_radius` is for few observations of unknown spread: the mixture over effects in units of
the spread, invariant to it (Lai 1976; Wang and Ramdas, "Anytime-valid t-tests", 2024).
"""

import math


def tuned_information(difference: float, alpha: float) -> float:
    """Information at which bounds for a difference of this size should be tightest."""
    return 2.0 * math.log(1.0 / alpha) / difference**2


def radius(variance: float, alpha: float, tuned: float) -> float:
    """Distance from the estimate to its one-sided bound.

    Args:
        variance: of the estimate, above 0.
        alpha: probability that the bound is ever wrong, at any look.
        tuned: information where the bound should be tightest.
    """
    information = 1.0 / variance
    weight = tuned / _best_time(alpha)
    total = information + weight
    bound = math.log(math.sqrt(total / weight) / (2.0 * alpha) + 1.0)
    return math.sqrt(2.0 * total * bound) / information


def student_radius(spread: float, count: int, alpha: float, size: float = 1.0) -> float:
    """The same for the mean of `count` observations with sample standard deviation `spread`.

    Args:
        spread: sample standard deviation, by `count` - 1.
        count: of observations.
        alpha: probability that the bound is ever wrong; the mixture has both sides, at twice it.
        size: of the effects to look for, in units of the spread.

    Returns:
        Infinity while so few observations can prove nothing.
    """
    if count < 2:
        return math.inf
    growth = 1.0 + count * size**2
    most = (math.sqrt(growth) / (2.0 * alpha)) ** (2.0 / count)
    if most >= growth:
        return math.inf
    squared = (count - 1) * (most - 1.0) / (1.0 - most / growth)
    return spread * math.sqrt(squared / count)


def _best_time(alpha: float) -> float:
    """Information over weight where the two-sided bound is tightest, nearly (Howard, 3.6)."""
    logarithm = -2.0 * math.log(2.0 * alpha)
    return logarithm + math.log(logarithm + 1.0)
