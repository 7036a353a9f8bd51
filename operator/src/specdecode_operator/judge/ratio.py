"""Ratios of sums over requests, with the delta-method variance of their logarithm.

The unit is the request: steps of one request are correlated, requests much less so. Deng et al.,
"Applying the Delta Method in Metric Analytics" (2018), section 3.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from specdecode_operator.judge.evidence import RequestSums

# No traffic is steadier than this coefficient of variation; equal requests prove nothing faster.
STEADIEST = 0.01


@dataclass(frozen=True, slots=True)
class Moments:
    """Sums over requests of two quantities whose ratio is asked for, above / below."""

    requests: float
    above: float
    below: float
    above_squared: float
    below_squared: float
    product: float


@dataclass(frozen=True, slots=True)
class LogRatio:
    """Logarithm of a ratio of two sums, and the variance of that estimate."""

    value: float
    variance: float


Measure = Callable[[RequestSums], Moments]


def seconds_per_token(sums: RequestSums) -> Moments:
    """Decode seconds over the tokens they brought."""
    return Moments(
        sums.requests,
        sums.seconds,
        sums.tokens,
        sums.seconds_squared,
        sums.tokens_squared,
        sums.seconds_tokens,
    )


def tokens_per_round(sums: RequestSums) -> Moments:
    """The accept length: tokens over steps, the token that each step brings anyway included."""
    return Moments(
        sums.requests,
        sums.tokens,
        sums.steps,
        sums.tokens_squared,
        sums.steps_squared,
        sums.tokens_steps,
    )


def log_ratio(moments: Moments) -> LogRatio | None:
    """Logarithm of above / below; None where too little is known for a variance."""
    m = moments
    if not (m.requests >= 2.0 and m.above > 0.0 and m.below > 0.0):
        return None
    spread = m.requests * (
        m.above_squared / m.above**2
        - 2.0 * m.product / (m.above * m.below)
        + m.below_squared / m.below**2
    )
    # Scrapes that cut a request in two can push the difference of large sums below zero.
    variance = max(spread, STEADIEST**2) / (m.requests - 1.0)
    value = math.log(m.above / m.below)
    return LogRatio(value, variance) if math.isfinite(value + variance) else None
