"""Evidence for the judge out of a fleet's counts."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from rollout.arrangements import SLOT_S
from rollout.fleet import BANDS, CLASSES, FIRST_TOKEN_S, INTER_TOKEN_S, STRATA, Floats, Seen
from specdecode_operator.judge.blocks import Block
from specdecode_operator.judge.evidence import ArmEvidence, Latencies, RequestSums, Role, Stratum

CLASS_STRATA = (
    ("greedy", "free", "short"),
    ("sampled", "free", "medium"),
    ("greedy", "constrained", "long"),
)
KEYS = tuple(Stratum(band, *CLASS_STRATA[kind]) for band in BANDS for kind in range(CLASSES))
assert len(KEYS) == STRATA


def accumulate(seen: Seen) -> Seen:
    """Counts since the start of the trial, in place of those of each slot."""
    return replace(
        seen,
        sums=np.cumsum(seen.sums, axis=0),
        first_token=np.cumsum(seen.first_token, axis=0),
        inter_token=np.cumsum(seen.inter_token, axis=0),
        failed=np.cumsum(seen.failed, axis=0),
        restarts=np.cumsum(seen.restarts, axis=0),
    )


def arms(so_far: Seen, until: int) -> tuple[dict[str, ArmEvidence], dict[str, ArmEvidence]]:
    """All that each pod of the baseline and of the candidate counted before a slot."""
    is_new = so_far.arrangement.candidate[0]
    old, new = (
        {f"pod-{pod}": counted(so_far, slice(until - 1, until), [pod]) for pod in arm}
        for arm in (np.flatnonzero(~is_new).tolist(), np.flatnonzero(is_new).tolist())
    )
    return old, new


def pair_of_blocks(seen: Seen, pair: int, until: int) -> Iterator[Block]:
    """What was counted in one pair before a slot; the first slot of a block is its washout.

    Pods that change over together stand here as one.
    """
    length = seen.arrangement.block_slots
    for start in (2 * length * pair, 2 * length * pair + length):
        if start >= until:
            return
        slots, is_finished = slice(start + 1, min(until, start + length)), start + length <= until
        is_new = seen.arrangement.candidate[start]
        for role, members in ((Role.BASELINE, ~is_new), (Role.CANDIDATE, is_new)):
            pods = np.flatnonzero(members).tolist()
            if pods:
                evidence = counted(seen, slots, pods)
                yield Block(pair, f"pods {pods}", role, evidence, is_finished)


def counted(seen: Seen, slots: slice, pods: list[int]) -> ArmEvidence:
    """What some pods counted in some slots."""
    sums = seen.sums[slots, pods].sum(axis=(0, 1))
    rows = zip(KEYS, sums.tolist(), strict=True)
    return ArmEvidence(
        strata={key: RequestSums(*row) for key, row in rows if row[0] > 0.0},
        first_token=_latencies(FIRST_TOKEN_S, seen.first_token[slots, pods]),
        inter_token=_latencies(INTER_TOKEN_S, seen.inter_token[slots, pods]),
        answered_requests=float(sums[:, 0].sum()),
        failed_requests=float(seen.failed[slots, pods].sum()),
        restarts=float(seen.restarts[slots, pods].sum()),
        pods=len(pods),
    )


def _latencies(bounds_s: tuple[float, ...], counts: Floats) -> Latencies:
    return Latencies(bounds_s, tuple(np.sum(counts, axis=(0, 1)).tolist()))


def elapsed_s(until: int) -> float:
    """Seconds since the trial began."""
    return float(until * SLOT_S)
