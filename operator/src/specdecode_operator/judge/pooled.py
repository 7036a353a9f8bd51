"""Evidence of several pods or blocks as that of one arm."""

from collections.abc import Iterable
from dataclasses import replace

from specdecode_operator.judge.evidence import ArmEvidence, Latencies, RequestSums, Stratum


def pool(parts: Iterable[ArmEvidence]) -> ArmEvidence:
    """Add everything up.

    Raises:
        ValueError: latencies were counted in different buckets.
    """
    parts = tuple(parts)
    strata: dict[Stratum, RequestSums] = {}
    for part in parts:
        for stratum, sums in part.strata.items():
            known = strata.get(stratum)
            strata[stratum] = sums if known is None else known + sums
    return ArmEvidence(
        strata=strata,
        first_token=_add(part.first_token for part in parts),
        inter_token=_add(part.inter_token for part in parts),
        answered_requests=sum(part.answered_requests for part in parts),
        failed_requests=sum(part.failed_requests for part in parts),
        preempted_requests=sum(part.preempted_requests for part in parts),
        restarts=sum(part.restarts for part in parts),
        pods=sum(part.pods for part in parts),
        self_test_failures=sum(part.self_test_failures for part in parts),
    )


def over_batch_sizes(arm: ArmEvidence) -> ArmEvidence:
    """The arm with strata of all batch sizes taken together.

    A candidate that is much slower fills its own pods with waiting work: it leaves the bands that
    it could be compared in.
    """
    strata: dict[Stratum, RequestSums] = {}
    for stratum, sums in arm.strata.items():
        wider = replace(stratum, batch_size=0)
        known = strata.get(wider)
        strata[wider] = sums if known is None else known + sums
    return replace(arm, strata=strata)


def request_count(arm: ArmEvidence) -> float:
    """Requests that decoded in any stratum."""
    return sum(sums.requests for sums in arm.strata.values())


def _add(parts: Iterable[Latencies]) -> Latencies:
    known = [part for part in parts if part.counts]
    if not known:
        return Latencies()
    bounds_s = known[0].bounds_s
    if any(part.bounds_s != bounds_s for part in known):
        raise ValueError(
            f"latencies in buckets {[part.bounds_s for part in known]}: count them all in the same"
        )
    counts = zip(*(part.counts for part in known), strict=True)
    sum_s = sum(part.sum_s for part in known)
    return Latencies(bounds_s, tuple(sum(count) for count in counts), sum_s)
