"""Student's distribution for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""

import math


def upper_tail(statistic: float, freedom: int) -> float:
    """Probability of a value above `statistic`."""
    angle = math.atan2(statistic, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    term = total = cosine if freedom % 2 else 1.0
    for step in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine**2 * (step - 1) / step
        total += term
    if freedom % 2:
        inside = 2.0 / math.pi * (angle + (sine * total if freedom > 1 else 0.0))
    else:
        inside = sine * total
    return 0.5 * (1.0 - inside)


def quantile(alpha: float, freedom: int) -> float:
    """Value with probability `alpha` above it."""
    low, high = 0.0, 1e6
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if upper_tail(middle, freedom) > alpha else (low, middle)
    return high
