"""Tails of latencies: the share of observations above the baseline's 95th percentile.

A percentile needs raw values; a share above a bucket's bound is a mean, and means can be tested.
Observations of one request, or of one round, come together; so where arms run side by side a
request counts once however many tokens it had, and where they take turns a pair counts once.
"""

import math
import statistics
from collections.abc import Sequence

from specdecode_operator.judge.confidence import radius, student_radius, tuned_information
from specdecode_operator.judge.evidence import Latencies
from specdecode_operator.judge.judgement import Rail

TAIL = 0.05  # share of the baseline's observations that should be above the bound
FEWEST = 20.0  # observations of an arm in a pair

Pair = tuple[Latencies, Latencies]  # of the baseline, of the candidate


def check_tail(
    name: str, pair: Pair, requests: tuple[float, float], rise: float, alpha: float
) -> Rail | None:
    """Check arms that ran side by side; None while there is nothing to compare."""
    shares = _shares(pair, _tail_bucket(pair[0]))
    if shares is None or min(requests) < 1.0:
        return None
    old, new = shares
    counts = [min(sum(part.counts), known) for part, known in zip(pair, requests, strict=True)]
    variance = _variance(new, counts[1]) + (1.0 + rise) ** 2 * _variance(old, counts[0])
    tuned = tuned_information(rise * TAIL, alpha)
    worst = new - (1.0 + rise) * old - radius(variance, alpha, tuned)
    return Rail(name, old, new, (1.0 + rise) * old, worst > 0.0)


def check_tail_by_pair(
    name: str, pooled: Pair, pairs: Sequence[Pair], rise: float, alpha: float
) -> Rail | None:
    """Check arms that took turns: the mean over pairs of how far the candidate is over."""
    bucket = _tail_bucket(pooled[0])
    shares = _shares(pooled, bucket)
    if shares is None:
        return None
    by_pair = [_shares(pair, bucket) for pair in pairs if _is_enough(pair)]
    over = [new - (1.0 + rise) * old for old, new in filter(None, by_pair)]
    worst = -math.inf
    if len(over) >= 2:
        spread = max(statistics.stdev(over), 0.1 * TAIL)
        worst = statistics.mean(over) - student_radius(spread, len(over), alpha)
    return Rail(name, *shares, (1.0 + rise) * shares[0], worst > 0.0)


def _tail_bucket(baseline: Latencies) -> int | None:
    """The bound with the share above it nearest to `TAIL`, on the scale of ratios."""
    count = sum(baseline.counts)
    if count <= 0.0:
        return None
    above = [sum(baseline.counts[i + 1 :]) / count for i in range(len(baseline.bounds_s))]
    known = [i for i, share in enumerate(above) if 0.0 < share < 0.5]
    return min(known, key=lambda i: abs(math.log(above[i] / TAIL)), default=None)


def _shares(pair: Pair, bucket: int | None) -> tuple[float, float] | None:
    """Shares above a bucket's bound, in both arms."""
    if bucket is None or any(sum(part.counts) <= 0.0 for part in pair):
        return None
    if pair[0].bounds_s != pair[1].bounds_s:
        raise ValueError(
            f"latencies in buckets {pair[0].bounds_s} and {pair[1].bounds_s}: count both arms' in"
            " the same"
        )
    old, new = (sum(part.counts[bucket + 1 :]) / sum(part.counts) for part in pair)
    return old, new


def _is_enough(pair: Pair) -> bool:
    return min(sum(part.counts) for part in pair) >= FEWEST


def _variance(share: float, count: float) -> float:
    """Of a share among `count`, with one success and one failure added, so never 0."""
    safe = (share * count + 1.0) / (count + 2.0)
    return safe * (1.0 - safe) / count
