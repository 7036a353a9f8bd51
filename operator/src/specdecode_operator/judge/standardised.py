"""An arm against what its own mix of requests would cost at the pooled rates of both arms.

Where arms are cut into short blocks most strata hold a request or two, too few for a ratio of
their own. Indirect standardisation needs no such floor: log(seen / expected), where expected sums
each stratum's denominator times the pooled ratio of that stratum. A change of the mix moves both.
"""

import math
from collections.abc import Mapping

from specdecode_operator.judge.evidence import ArmEvidence, Stratum
from specdecode_operator.judge.pooled import over_batch_sizes, pool
from specdecode_operator.judge.ratio import STEADIEST, LogRatio, Measure

Rates = Mapping[Stratum, float]


def pooled_rates(pooled: ArmEvidence, measure: Measure, min_requests: float) -> Rates:
    """Ratio of every stratum with at least `min_requests` in all arms together."""
    rates = {}
    for stratum, sums in pooled.strata.items():
        moments = measure(sums)
        if moments.requests >= min_requests and moments.above > 0.0 and moments.below > 0.0:
            rates[stratum] = moments.above / moments.below
    return rates


def seen_to_expected(arm: ArmEvidence, rates: Rates, measure: Measure) -> LogRatio | None:
    """log(seen / expected) over the strata with a rate; None where there are too few requests."""
    known = [(rates[at], measure(sums)) for at, sums in arm.strata.items() if at in rates]
    requests = sum(m.requests for _, m in known)
    seen = sum(m.above for _, m in known)
    expected = sum(rate * m.below for rate, m in known)
    if not (requests >= 2.0 and seen > 0.0 and expected > 0.0):
        return None
    ratio = seen / expected
    spread = 0.0
    for rate, m in known:
        own = ratio * rate
        spread += m.above_squared - 2.0 * own * m.product + own**2 * m.below_squared
    spread *= requests / seen**2
    variance = max(spread, STEADIEST**2) / (requests - 1.0)
    return LogRatio(math.log(ratio), variance)


def compare(baseline: ArmEvidence, candidate: ArmEvidence, measure: Measure) -> LogRatio | None:
    """log(candidate / baseline) over everything, batch sizes taken together.

    For what is large: a few requests suffice, and a candidate cannot hide in bands of its own.
    """
    arms = over_batch_sizes(baseline), over_batch_sizes(candidate)
    rates = pooled_rates(pool(arms), measure, 1.0)
    old, new = (seen_to_expected(arm, rates, measure) for arm in arms)
    return difference(new, old)


def difference(new: LogRatio | None, old: LogRatio | None) -> LogRatio | None:
    """log(candidate / baseline) of two independent arms."""
    if new is None or old is None:
        return None
    return LogRatio(new.value - old.value, new.variance + old.variance)
