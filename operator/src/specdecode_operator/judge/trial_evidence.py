"""What a trial keeps for its verdict: whole numbers, bounded however long the trial and its labels.

In turns (`TurnEvidence`) a pair of turns is one flat array of whole numbers, summed over all pods:
one `RoleRow` for the baseline and one for the candidate, then one `Cell` of each role for every
stratum. On separate pods (`PodEvidence`) the same array holds the whole trial, and each pod has
one `PodWindow` per time window. `recording` adds to it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from specdecode_operator.judge.evidence import (
    Latencies,
    Role,
    Stratum,
)

MAX_STRATA = 24
"""Strata of one trial, `OTHER` included."""
MAX_PAIRS = 128
"""Pairs of one trial; 120 turns of a minute are two hours."""
MAX_PODS = 32
MAX_WINDOWS = 32
OTHER = Stratum(0, "", "", "", "other")
"""All requests of strata that are not kept apart."""
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
    unfit_drafts: int = 0


class Cell(NamedTuple):
    """Requests of one stratum and role: decode time in microseconds, and decode steps."""

    requests: int = 0
    tokens: int = 0
    decode_us: int = 0
    steps: int = 0


NO_CELL = Cell()

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
    """Pairs of turns. `open` is the pair that runs; `abandoned` sums pairs that were given up.

    `before` is what the baseline answered before the trial, where one pair may show a fall; the
    cells of the candidate are zeros.
    """

    strata: tuple[Stratum, ...] = ()
    tails: Tails = NO_TAILS
    pairs: tuple[Counts, ...] = ()
    open: Counts = ()
    abandoned: Counts = ()
    before: Counts = ()
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
    sums: Cell = NO_CELL
    """Of all strata since the start of the trial, the open window included."""


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


def columns_of(counts: Counts, strata: int, *names: str) -> Iterator[tuple[int, ...]]:
    """Fields of `Cell` by stratum: for each name, and in it for each role, `strata` numbers.

    They are zeros where the array ends before a stratum.
    """
    for name in names:
        for role in ROLES:
            column = column_of(counts, role, name)
            yield (column + (0,) * (strata - len(column)))[:strata]


def add_counts(*arrays: Counts) -> Counts:
    """Sum arrays; a shorter one has no requests in the later strata."""
    return tuple(map(sum, zip_longest(*arrays, fillvalue=0)))
