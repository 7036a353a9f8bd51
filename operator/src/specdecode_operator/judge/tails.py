"""Tails of latencies as shares: how much lies above the baseline's 95th percentile.

A percentile needs raw values; a share above a bucket's bound is a mean, and means can be tested.
"""

import math
from collections.abc import Sequence

from specdecode_operator.judge.evidence import Latencies
from specdecode_operator.judge.shares import Shares

TAIL = 0.05  # share of the baseline's observations that should be above the bound
FEWEST = 20.0  # observations of an arm in a pair

Pair = tuple[Latencies, Latencies]  # of the baseline, of the candidate


def tail_bucket(baseline: Latencies) -> int | None:
    """The bound with the share above it nearest to `TAIL`, on the scale of ratios."""
    count = sum(baseline.counts)
    if count <= 0.0:
        return None
    above = [sum(baseline.counts[i + 1 :]) / count for i in range(len(baseline.bounds_s))]
    known = [i for i, share in enumerate(above) if 0.0 < share < 0.5]
    return min(known, key=lambda i: abs(math.log(above[i] / TAIL)), default=None)


def tail_shares(pair: Pair, bucket: int) -> Shares | None:
    """Shares above a bucket's bound; None where an arm has no observations.

    Raises:
        ValueError: the arms were counted in different buckets.
    """
    if any(sum(part.counts) <= 0.0 for part in pair):
        return None
    if pair[0].bounds_s != pair[1].bounds_s:
        raise ValueError(
            f"latencies in buckets {pair[0].bounds_s} and {pair[1].bounds_s}: count both arms' in"
            " the same"
        )
    old, new = (sum(part.counts[bucket + 1 :]) / sum(part.counts) for part in pair)
    return old, new


def tail_shares_by_pair(pairs: Sequence[Pair], bucket: int) -> list[Shares]:
    """The same for each pair of blocks with enough observations in both arms."""
    enough = (pair for pair in pairs if min(sum(part.counts) for part in pair) >= FEWEST)
    return [shares for pair in enough if (shares := tail_shares(pair, bucket)) is not None]
