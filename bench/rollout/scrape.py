"""Evidence for the judge out of a fleet's counts."""

from collections.abc import Iterator

import numpy as np

from rollout.arrangements import SLOT_S
from rollout.fleet import BANDS, CLASSES, FIRST_TOKEN_S, INTER_TOKEN_S, STRATA, Floats, Seen
from specdecode_operator.judge.blocks import Block, Role
from specdecode_operator.judge.evidence import ArmEvidence, Latencies, RequestSums, Stratum

CLASS_STRATA = (
    ("greedy", "free", "short"),
    ("sampled", "free", "medium"),
    ("greedy", "constrained", "long"),
)
KEYS = tuple(Stratum(band, *CLASS_STRATA[kind]) for band in BANDS for kind in range(CLASSES))
assert len(KEYS) == STRATA


def arm(seen: Seen, half: int, until: int) -> ArmEvidence:
    """All that a half of the fleet counted before a slot."""
    return _evidence(seen, half, slice(0, until), seen.arrangement.pods[half])


def blocks(seen: Seen, until: int) -> Iterator[Block]:
    """Blocks of each half before a slot, washout left out; the last may be unfinished."""
    length = seen.arrangement.block_slots
    for start in range(0, until, length):
        for half, pods in enumerate(seen.arrangement.pods):
            is_new = bool(seen.arrangement.candidate[start, half])
            yield Block(
                start // (2 * length),
                f"half-{half}",
                Role.CANDIDATE if is_new else Role.BASELINE,
                _evidence(seen, half, slice(start + 1, min(until, start + length)), pods),
            )


def _evidence(seen: Seen, half: int, slots: slice, pods: int) -> ArmEvidence:
    sums = seen.sums[slots, half].sum(axis=0)
    strata = {KEYS[at]: RequestSums(*row.tolist()) for at, row in enumerate(sums) if row[0] > 0.0}
    return ArmEvidence(
        strata=strata,
        first_token=_latencies(FIRST_TOKEN_S, seen.first_token[slots, half]),
        inter_token=_latencies(INTER_TOKEN_S, seen.inter_token[slots, half]),
        answered_requests=float(sums[:, 0].sum()),
        failed_requests=float(seen.failed[slots, half].sum()),
        restarts=float(seen.restarts[slots, half].sum()),
        pods=pods,
    )


def _latencies(bounds_s: tuple[float, ...], counts: Floats) -> Latencies:
    return Latencies(bounds_s, tuple(np.sum(counts, axis=0).tolist()))


def elapsed_s(until: int) -> float:
    """Seconds since the trial began."""
    return float(until * SLOT_S)
