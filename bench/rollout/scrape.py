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


def arms(seen: Seen, until: int) -> tuple[dict[str, ArmEvidence], dict[str, ArmEvidence]]:
    """All that each pod of the baseline and of the candidate counted before a slot."""
    is_new = seen.arrangement.candidate[0]
    old, new = (
        {
            f"pod-{pod}": _evidence(seen, pod, slice(0, until))
            for pod in np.flatnonzero(arm).tolist()
        }
        for arm in (~is_new, is_new)
    )
    return old, new


def pair_of_blocks(seen: Seen, pair: int, until: int) -> Iterator[Block]:
    """What each pod did in one pair before a slot; the first slot of a block is its washout."""
    length = seen.arrangement.block_slots
    for start in (2 * length * pair, 2 * length * pair + length):
        if start >= until:
            return
        slots = slice(start + 1, min(until, start + length))
        for pod in range(seen.arrangement.pods):
            is_new = seen.arrangement.candidate[start, pod]
            role = Role.CANDIDATE if is_new else Role.BASELINE
            yield Block(pair, f"pod-{pod}", role, _evidence(seen, pod, slots))


def _evidence(seen: Seen, pod: int, slots: slice) -> ArmEvidence:
    sums = seen.sums[slots, pod].sum(axis=0)
    rows = zip(KEYS, sums.tolist(), strict=True)
    return ArmEvidence(
        strata={key: RequestSums(*row) for key, row in rows if row[0] > 0.0},
        first_token=_latencies(FIRST_TOKEN_S, seen.first_token[slots, pod]),
        inter_token=_latencies(INTER_TOKEN_S, seen.inter_token[slots, pod]),
        answered_requests=float(sums[:, 0].sum()),
        failed_requests=float(seen.failed[slots, pod].sum()),
        restarts=float(seen.restarts[slots, pod].sum()),
        pods=1,
    )


def _latencies(bounds_s: tuple[float, ...], counts: Floats) -> Latencies:
    return Latencies(bounds_s, tuple(np.sum(counts, axis=0).tolist()))


def elapsed_s(until: int) -> float:
    """Seconds since the trial began."""
    return float(until * SLOT_S)
