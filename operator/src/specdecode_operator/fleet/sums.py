"""Adding evidence up and taking it apart: what a pod saw since it was read last."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from specdecode_operator.judge.evidence import ArmEvidence, Latencies, RequestSums, Stratum, pool

MAX_STRATA = 192
"""Strata kept of an arm; requests of more are left out, so that a record of it stays small."""

_NONE = RequestSums()
_COUNTS = ("answered_requests", "failed_requests", "preempted_requests")


def add(left: ArmEvidence, right: ArmEvidence) -> ArmEvidence:
    """Both together; of restarts the sum, of pods those of `left`."""
    room = MAX_STRATA - len(left.strata)
    new = islice((stratum for stratum in right.strata if stratum not in left.strata), max(room, 0))
    kept = left.strata.keys() | set(new)
    fitting = {stratum: sums for stratum, sums in right.strata.items() if stratum in kept}
    return replace(pool((left, replace(right, strata=fitting))), pods=left.pods)


def grown(since: ArmEvidence, now: ArmEvidence) -> ArmEvidence:
    """The difference between two readings of one process.

    If any count is less than before, the process restarted its counters; all of `now` is new. That
    of `unfit_drafts` falls when a draft is exchanged or recovers.
    """
    if _has_fallen(since, now):
        return now
    return replace(
        now,
        strata=_grown_strata(since.strata, now.strata),
        first_token=_grown_latencies(since.first_token, now.first_token),
        inter_token=_grown_latencies(since.inter_token, now.inter_token),
        unfit_drafts=max(now.unfit_drafts - since.unfit_drafts, 0.0),
        **{name: getattr(now, name) - getattr(since, name) for name in _COUNTS},
    )


def is_empty(evidence: ArmEvidence) -> bool:
    """Whether nothing was seen."""
    counts = (getattr(evidence, name) for name in (*_COUNTS, "unfit_drafts"))
    latencies = (*evidence.first_token.counts, *evidence.inter_token.counts)
    return not (evidence.strata or evidence.restarts or any(counts) or any(latencies))


def _grown_strata(
    since: Mapping[Stratum, RequestSums], now: Mapping[Stratum, RequestSums]
) -> dict[Stratum, RequestSums]:
    differences = {stratum: sums - since.get(stratum, _NONE) for stratum, sums in now.items()}
    return {stratum: sums for stratum, sums in differences.items() if sums.requests > 0}


def _has_fallen(since: ArmEvidence, now: ArmEvidence) -> bool:
    for stratum, sums in since.strata.items():
        later = now.strata.get(stratum, _NONE)
        if (
            later.requests < sums.requests
            or later.tokens < sums.tokens
            or later.steps < sums.steps
            or later.seconds < sums.seconds
        ):
            return True
    if any(getattr(now, name) < getattr(since, name) for name in _COUNTS):
        return True
    pairs = ((now.first_token, since.first_token), (now.inter_token, since.inter_token))
    return any(_is_less(later.counts, earlier.counts) for later, earlier in pairs)


def _is_less(now: tuple[float, ...], since: tuple[float, ...]) -> bool:
    if len(now) < len(since):
        return True
    return any(later < earlier for later, earlier in zip(now, since, strict=False))


def _grown_latencies(since: Latencies, now: Latencies) -> Latencies:
    if not since.counts:
        return now
    pairs = zip(since.counts, now.counts, strict=True)
    counts = tuple(later - earlier for earlier, later in pairs)
    return Latencies(now.bounds_s, counts, now.sum_s - since.sum_s)
