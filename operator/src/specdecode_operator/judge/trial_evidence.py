"""What a trial keeps for its verdict: whole numbers, bounded however long the trial and its labels.

In turns (`TurnEvidence`) a pair of turns is one flat array of whole numbers, summed over all pods:
one `RoleRow` for the baseline and one for the candidate, then one `Cell` of each role for every
stratum. On separate pods (`PodEvidence`) the same array holds the whole trial, and each pod has
one `PodWindow` per time window. `to_document` stays below `MAX_BYTES`: at most `MAX_STRATA` strata,
and fewer while the document is larger; the strata with the fewest requests are merged into `OTHER`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from specdecode_operator.judge.evidence import (
    ArmEvidence,
    Latencies,
    RequestSums,
    Role,
    Stratum,
    pool,
)

MAX_STRATA = 24
"""Strata of one trial, `OTHER` included."""
MAX_BYTES = 48 * 1024
"""Of the evidence as JSON, while a trial has at most `MAX_PAIRS` pairs."""
MAX_PAIRS = 128
"""Pairs of one trial; 120 turns of a minute are two hours."""
OVERHEAD_BYTES = 6 * 1024
"""Room within `MAX_BYTES` for strata, histograms and the names of the fields."""
MAX_PODS = 32
MAX_WINDOWS = 32
OTHER = Stratum(0, "", "", "", "other")
"""All requests of strata that are not kept apart."""
TAIL = 0.05
"""Share of observations that lies above the bound of a tail."""
MICRO = 1_000_000

NO_LATENCIES = Latencies()

ROLES = (Role.BASELINE, Role.CANDIDATE)

Counts = tuple[int, ...]


class RoleRow(NamedTuple):
    """What all pods of one role did in one pair. `slow` counts what is above the tail's bound."""

    first_tokens: int = 0
    first_token_us: int = 0
    first_tokens_slow: int = 0
    inter_tokens: int = 0
    inter_tokens_slow: int = 0
    answered: int = 0
    failed: int = 0
    preempted: int = 0
    restarts: int = 0
    self_test_failures: int = 0


class Cell(NamedTuple):
    """Requests of one stratum and role: decode time in microseconds, and decode steps."""

    requests: int = 0
    tokens: int = 0
    decode_us: int = 0
    steps: int = 0


ROW, CELL = len(RoleRow._fields), len(Cell._fields)


@dataclass(frozen=True, slots=True)
class Tails:
    """Index of the bucket bound above which an observation counts as slow; -1: not known yet.

    Chosen from both roles together, so that the choice favours neither.
    """

    first_token: int = -1
    inter_token: int = -1


NO_TAILS = Tails()


@dataclass(frozen=True, slots=True)
class Histograms:
    """Latencies of one role since the start of the trial, for reports."""

    first_token: Latencies = NO_LATENCIES
    inter_token: Latencies = NO_LATENCIES


NO_HISTOGRAMS = Histograms()


@dataclass(frozen=True, slots=True)
class TurnEvidence:
    """Pairs of turns. `open` is the pair that runs; `abandoned` sums pairs that were given up."""

    strata: tuple[Stratum, ...] = ()
    tails: Tails = NO_TAILS
    pairs: tuple[Counts, ...] = ()
    open: Counts = ()
    abandoned: Counts = ()
    baseline: Histograms = NO_HISTOGRAMS
    candidate: Histograms = NO_HISTOGRAMS


class PodWindow(NamedTuple):
    """One pod in one time window.

    `log_ratio_micro` is 1e6 × log(decode time / what its requests would cost at the mean rates of
    both arms); `expected_us` its weight.
    """

    number: int
    requests: int
    log_ratio_micro: int
    expected_us: int
    first_tokens: int
    first_token_us: int


@dataclass(frozen=True, slots=True)
class PodWindows:
    """One pod that runs one configuration during the whole trial."""

    pod: str
    role: Role
    windows: tuple[PodWindow, ...] = ()


@dataclass(frozen=True, slots=True)
class PodEvidence:
    """Arms on separate pods. `total` is the whole trial so far."""

    strata: tuple[Stratum, ...] = ()
    tails: Tails = NO_TAILS
    total: Counts = ()
    pods: tuple[PodWindows, ...] = ()
    baseline: Histograms = NO_HISTOGRAMS
    candidate: Histograms = NO_HISTOGRAMS


def row_of(counts: Counts, role: Role) -> RoleRow:
    """The row of one role; zeros for an empty array."""
    start = ROW * ROLES.index(role)
    return RoleRow(*counts[start : start + ROW])


def cell_of(counts: Counts, stratum: int, role: Role) -> Cell:
    """One stratum of one role, by the stratum's index; zeros where the array ends before it."""
    start = 2 * ROW + CELL * (2 * stratum + ROLES.index(role))
    return Cell(*counts[start : start + CELL])


def column_of(counts: Counts, role: Role, name: str) -> Counts:
    """One field of `Cell` of one role, by stratum; shorter where the array ends before."""
    start = 2 * ROW + CELL * ROLES.index(role) + Cell._fields.index(name)
    return counts[start :: 2 * CELL]


def add_counts(left: Counts, right: Counts) -> Counts:
    """Sum two arrays; the shorter one has no requests in the later strata."""
    shorter, longer = sorted((left, right), key=len)
    padded = shorter + (0,) * (len(longer) - len(shorter))
    return tuple(one + other for one, other in zip(padded, longer, strict=True))


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
            known[name] = replace(before, windows=windows[-MAX_WINDOWS:])
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
        self_test_failures=round(arm.self_test_failures),
    )


def _slow(latencies: Latencies, bound: int) -> int:
    return 0 if bound < 0 else round(sum(latencies.counts[bound + 1 :]))


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
    seen = sum(sums.seconds for sums in arm.strata.values()) * MICRO
    if not (seen > 0.0 and expected > 0.0):
        return ()
    window = PodWindow(
        number=number,
        requests=round(sum(sums.requests for sums in arm.strata.values())),
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
