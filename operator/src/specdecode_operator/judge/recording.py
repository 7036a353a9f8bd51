"""Adds what was observed to the evidence of a trial, and keeps its size within bounds.

The document of the evidence stays below `MAX_BYTES`: at most `MAX_STRATA` strata, and fewer while
it is larger; the strata with the fewest requests are merged into `OTHER`.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from specdecode_operator.judge.evidence import (
    ArmEvidence,
    Latencies,
    RequestSums,
    Role,
    Stratum,
    pool,
)
from specdecode_operator.judge.trial_evidence import (
    CELL,
    MAX_PODS,
    MAX_STRATA,
    MAX_WINDOWS,
    MICRO,
    NO_CELL,
    OTHER,
    ROLES,
    ROW,
    Cell,
    Counts,
    Histograms,
    PodEvidence,
    PodWindow,
    PodWindows,
    RoleRow,
    Tails,
    TurnEvidence,
    add_counts,
    cell_of,
)

MAX_BYTES = 48 * 1024
"""Of the evidence as JSON, while a trial has at most `MAX_PAIRS` pairs."""
OVERHEAD_BYTES = 6 * 1024
"""Room within `MAX_BYTES` for strata, histograms and the names of the fields."""
TAIL = 0.05
"""Share of observations that lies above the bound of a tail."""


def close_pair(
    evidence: TurnEvidence, baseline: ArmEvidence, candidate: ArmEvidence
) -> TurnEvidence:
    """Add a complete pair: what all its pods did in each role, washouts left out."""
    strata, tails, counts = _encode(evidence.strata, evidence.tails, baseline, candidate)
    limit = MAX_BYTES - OVERHEAD_BYTES
    strata, arrays = _fit(strata, (*evidence.pairs, counts, evidence.abandoned), limit)
    return TurnEvidence(
        strata=strata,
        tails=tails,
        pairs=arrays[:-1],
        abandoned=arrays[-1],
        baseline=_with_latencies(evidence.baseline, baseline),
        candidate=_with_latencies(evidence.candidate, candidate),
    )


def observe_open(
    evidence: TurnEvidence, baseline: ArmEvidence, candidate: ArmEvidence
) -> TurnEvidence:
    """Replace what is known of the pair that runs; only alarms use it."""
    strata, _, counts = _encode(evidence.strata, evidence.tails, baseline, candidate)
    limit = MAX_BYTES - OVERHEAD_BYTES
    strata, arrays = _fit(strata, (*evidence.pairs, evidence.abandoned, counts), limit)
    return replace(
        evidence, strata=strata, pairs=arrays[:-2], abandoned=arrays[-2], open=arrays[-1]
    )


def compare_with(evidence: TurnEvidence, before: ArmEvidence) -> TurnEvidence:
    """Add what the baseline answered before the trial, in the strata that are kept apart."""
    counts = [0] * (2 * ROW)
    for stratum in evidence.strata:
        counts += [*_cell(before.strata.get(stratum, RequestSums())), *NO_CELL]
    return replace(evidence, before=tuple(counts))


def abandon_pair(evidence: TurnEvidence) -> TurnEvidence:
    """Give up the pair that runs; its failures and restarts remain."""
    return replace(evidence, open=(), abandoned=add_counts(evidence.abandoned, evidence.open))


def close_window(
    evidence: PodEvidence, number: int, pods: Mapping[str, tuple[Role, ArmEvidence]]
) -> PodEvidence:
    """Add a time window of arms on separate pods, by pod; pods beyond `MAX_PODS` are left out."""
    old, new = (pool(arm for of, arm in pods.values() if of is role) for role in ROLES)
    strata, tails, counts = _encode(evidence.strata, evidence.tails, old, new)
    strata, (total,) = _fit(strata, (add_counts(evidence.total, counts),), MAX_BYTES)
    rates = _mean_rates(strata, total)
    known = {each.pod: each for each in evidence.pods}
    for name, (role, arm) in sorted(pods.items()):
        if name in known or len(known) < MAX_PODS:
            before = known.get(name, PodWindows(name, role))
            windows = (*before.windows, *_windows(number, arm, strata, rates))
            known[name] = replace(
                before,
                windows=windows[-MAX_WINDOWS:],
                sums=Cell(*map(sum, zip(before.sums, _cell(_everything(arm)), strict=True))),
            )
    return PodEvidence(
        strata=strata,
        tails=tails,
        total=total,
        pods=tuple(known.values()),
        baseline=_with_latencies(evidence.baseline, old),
        candidate=_with_latencies(evidence.candidate, new),
    )


def _encode(
    strata: tuple[Stratum, ...], tails: Tails, baseline: ArmEvidence, candidate: ArmEvidence
) -> tuple[tuple[Stratum, ...], Tails, Counts]:
    """Both roles as one array; strata that are not known yet are appended."""
    both = pool((baseline, candidate))
    tails = Tails(
        tails.first_token if tails.first_token >= 0 else tail_bound(both.first_token),
        tails.inter_token if tails.inter_token >= 0 else tail_bound(both.inter_token),
    )
    strata = (*strata, *sorted(both.strata.keys() - set(strata)))
    arms = (baseline, candidate)
    counts: list[int] = [number for arm in arms for number in _row(arm, tails)]
    for stratum in strata:
        for arm in arms:
            counts += _cell(arm.strata.get(stratum, RequestSums()))
    return strata, tails, tuple(counts)


def _row(arm: ArmEvidence, tails: Tails) -> RoleRow:
    return RoleRow(
        first_tokens=round(sum(arm.first_token.counts)),
        first_token_us=round(arm.first_token.sum_s * MICRO),
        first_tokens_slow=_slow(arm.first_token, tails.first_token),
        inter_tokens=round(sum(arm.inter_token.counts)),
        inter_tokens_slow=_slow(arm.inter_token, tails.inter_token),
        answered=round(arm.answered_requests),
        failed=round(arm.failed_requests),
        preempted=round(arm.preempted_requests),
        restarts=round(arm.restarts),
        unfit_drafts=round(arm.unfit_drafts),
    )


def _slow(latencies: Latencies, bound: int) -> int:
    return 0 if bound < 0 else round(sum(latencies.counts[bound + 1 :]))


def _everything(arm: ArmEvidence) -> RequestSums:
    return sum(arm.strata.values(), RequestSums())


def _cell(sums: RequestSums) -> Cell:
    return Cell(
        round(sums.requests), round(sums.tokens), round(sums.seconds * MICRO), round(sums.steps)
    )


def _fit(
    strata: tuple[Stratum, ...], arrays: tuple[Counts, ...], limit_bytes: int
) -> tuple[tuple[Stratum, ...], tuple[Counts, ...]]:
    """Merge the strata with the fewest requests until number and size are within bounds."""
    if len(strata) > MAX_STRATA:
        excess = len(strata) + (OTHER not in strata) - MAX_STRATA
        strata, arrays = _merge_smallest(strata, arrays, excess)
    while len(strata) > 1 and _size(arrays) > limit_bytes:
        strata, arrays = _merge_smallest(strata, arrays, 1)
    return strata, arrays


def _merge_smallest(
    strata: tuple[Stratum, ...], arrays: tuple[Counts, ...], count: int
) -> tuple[tuple[Stratum, ...], tuple[Counts, ...]]:
    """Move the requests of the `count` strata with the fewest ones to `OTHER`."""
    if OTHER not in strata:
        strata = (*strata, OTHER)
    requests = [0] * len(strata)
    for counts in arrays:
        for place, number in enumerate(counts[2 * ROW :: CELL]):
            requests[place // 2] += number
    apart = [index for index, stratum in enumerate(strata) if stratum != OTHER]
    gone = sorted(sorted(apart, key=requests.__getitem__)[:count])
    into = strata.index(OTHER)
    arrays = tuple(_merged(counts, gone, into, len(strata)) for counts in arrays)
    return tuple(each for index, each in enumerate(strata) if index not in gone), arrays


def _merged(counts: Counts, gone: list[int], into: int, strata: int) -> Counts:
    """The array without some strata, whose requests move to another one."""
    width = 2 * CELL  # of a stratum
    cells = counts[2 * ROW :]
    if len(cells) <= width * min(*gone, into):
        return counts  # it ends before them
    cells += (0,) * (width * strata - len(cells))
    blocks = [cells[start : start + width] for start in range(0, len(cells), width)]
    moved = [blocks[index] for index in (into, *gone)]
    blocks[into] = tuple(map(sum, zip(*moved, strict=True)))
    kept = (block for index, block in enumerate(blocks) if index not in gone)
    return (*counts[: 2 * ROW], *chain.from_iterable(kept))


def _size(arrays: tuple[Counts, ...]) -> int:
    """Characters of the arrays as JSON: Python adds a space to each comma, and two parentheses."""
    return sum(len(str(counts)) - len(counts) for counts in arrays if counts)


def _mean_rates(strata: tuple[Stratum, ...], total: Counts) -> dict[Stratum, float]:
    """Microseconds per token of both arms together."""
    rates = {}
    for index, stratum in enumerate(strata):
        old, new = (cell_of(total, index, role) for role in ROLES)
        if old.tokens + new.tokens > 0:
            rates[stratum] = (old.decode_us + new.decode_us) / (old.tokens + new.tokens)
    return rates


def _windows(
    number: int, arm: ArmEvidence, strata: tuple[Stratum, ...], rates: Mapping[Stratum, float]
) -> tuple[PodWindow, ...]:
    """The window of a pod, or none where it has decoded nothing."""
    expected = sum(
        rates.get(stratum if stratum in strata else OTHER, 0.0) * sums.tokens
        for stratum, sums in arm.strata.items()
    )
    own = _everything(arm)
    seen = own.seconds * MICRO
    if not (seen > 0.0 and expected > 0.0):
        return ()
    window = PodWindow(
        number=number,
        requests=round(own.requests),
        log_ratio_micro=round(math.log(seen / expected) * MICRO),
        expected_us=round(expected),
        first_tokens=round(sum(arm.first_token.counts)),
        first_token_us=round(arm.first_token.sum_s * MICRO),
    )
    return (window,)


def _with_latencies(known: Histograms, arm: ArmEvidence) -> Histograms:
    parts = pool((ArmEvidence(first_token=known.first_token, inter_token=known.inter_token), arm))
    return Histograms(parts.first_token, parts.inter_token)


def tail_bound(latencies: Latencies) -> int:
    """Index of the bound with the share above it closest to `TAIL` as a ratio; -1: none."""
    count = sum(latencies.counts)
    above = [sum(latencies.counts[index + 1 :]) for index in range(len(latencies.bounds_s))]
    known = [index for index, slow in enumerate(above) if 0.0 < slow < 0.5 * count]
    distances = {
        index: max(above[index] / count, TAIL) / min(above[index] / count, TAIL) for index in known
    }
    return min(distances, key=distances.__getitem__, default=-1)
