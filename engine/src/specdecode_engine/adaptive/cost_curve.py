"""Curves of the parts of a step's cost: measured cells, interpolated, and a shape beyond them."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import NamedTuple

# Shape of a step's cost where nothing was measured: rows that double the time of an almost empty
# forward, and the share of it that a draft step takes. Both on the expensive side of what hardware
# shows (a GPU with a dense model: 280 and 0.05), so an unmeasured candidate is tried only if it is
# expected to yield clearly more tokens.
FREE_ROWS, DRAFT_SHARE = 32.0, 0.1
BLOCK_ROWS = 16.0  # rows of a block, as most drafts of blocks have them
# Factors of both that a fit tries, in powers of two, and by how many squared log-seconds a fit must
# be better to change one by a factor of two.
FIT_OCTAVES, FIT_PENALTY = range(-3, 5), 1e-3
# Numbers of rows, and batch sizes, that share a cell: those within a third of an octave.
CELL_OCTAVES = 0.33
# Maximum log-seconds that one step contributes: larger values are spikes.
MAX_LOG_RATIO = 0.3
# The weight of a step in its cell never falls below this, so that a slower machine is noticed; nor
# does a part's share of a measured step, so that noise leaves it positive.
MIN_GAIN = 0.02
# Share of a step's time that a cell must have moved by before costs are computed again.
RESOLUTION = 0.004


class CostPart(NamedTuple):
    """A step or one part of it: 0 rows are drafting alone, 0 draft steps a forward alone."""

    rows: int
    batch_size: int
    num_steps: int
    seconds: float  # without the part of the KV


@dataclass(frozen=True, slots=True)
class CostShape:
    """Seconds of the parts of a step, relative to an empty forward of the target.

    A block takes one forward of the draft over a few rows per request, whatever is verified of it.
    """

    free_rows: float = FREE_ROWS
    draft_share: float = DRAFT_SHARE
    drafts_blocks: bool = False

    def verify(self, rows: float) -> float:
        return 1.0 + rows / self.free_rows

    def draft_step(self, batch_size: float) -> float:
        rows = batch_size * BLOCK_ROWS if self.drafts_blocks else batch_size
        return self.draft_share * self.verify(rows)

    def relative(self, part: CostPart) -> float:
        verify = self.verify(part.rows) if part.rows else 0.0
        forwards = min(part.num_steps, 1) if self.drafts_blocks else part.num_steps
        return verify + forwards * self.draft_step(part.batch_size)


class CostCell:
    """Log-seconds of one part of a step, at a number of rows or at a batch size, without KV."""

    __slots__ = ("_used", "at", "is_measured", "log_seconds", "steps")

    def __init__(self, at: int, seconds: float, is_measured: bool) -> None:
        self.at = at
        self.log_seconds = self._used = math.log(seconds)
        self.is_measured = is_measured
        self.steps = 0  # served steps that refined it

    @property
    def seconds(self) -> float:
        return math.exp(self.log_seconds)

    @property
    def gain(self) -> float:
        """Weight of the next step; a measured point counts as one step."""
        return max(1.0 / (self.steps + self.is_measured + 1), MIN_GAIN)

    def refine(self, log_ratio: float, gain: float, step_s: float) -> bool:
        """Add seen over expected seconds of a step; return whether the cell has moved noticeably.

        Args:
            gain: of this cell.
            step_s: expected.
        """
        if abs(log_ratio) > MAX_LOG_RATIO and (self.is_measured or self.steps):
            log_ratio = math.copysign(MAX_LOG_RATIO, log_ratio)
        self.log_seconds += log_ratio * gain
        self.steps += 1
        moved = abs(self.log_seconds - self._used)
        if moved < RESOLUTION or moved * self.seconds < RESOLUTION * step_s:
            return False
        self._used = self.log_seconds
        return True


class CostCurve:
    """Cells along one axis, interpolated linearly between them; never falling.

    Cells that contradict this are averaged. Beyond them it follows a linear function, in
    proportion. Several measured values at one place count by their geometric mean.
    """

    def __init__(self, measured: Iterable[tuple[int, float]] = ()) -> None:
        self.cells: list[CostCell] = []
        for at, group in groupby(sorted(measured), key=lambda one: one[0]):
            logs = [math.log(seconds) for _, seconds in group]
            self.cells.append(CostCell(at, math.exp(sum(logs) / len(logs)), is_measured=True))
        self.places = [cell.at for cell in self.cells]
        self._nearest: dict[int, CostCell | None] = {}
        self._values: list[float] = []

    def at(self, place: float, shape: Callable[[float], float]) -> float:
        values, above = self.values(), bisect_left(self.places, place)
        if above < len(values) and self.places[above] == place:
            return values[above]
        if above == 0 or above == len(values):
            edge = min(above, len(values) - 1)
            return values[edge] * shape(place) / shape(self.places[edge])
        left, right = self.places[above - 1], self.places[above]
        share = (place - left) / (right - left)
        return values[above - 1] + share * (values[above] - values[above - 1])

    def values(self) -> list[float]:
        """Return the seconds of the cells, ascending."""
        if not self._values:
            weights = [cell.steps + 1.0 for cell in self.cells]
            self._values = increasing([cell.seconds for cell in self.cells], weights)
        return self._values

    def forget_values(self) -> None:
        self._values = []

    def near(self, place: int) -> CostCell | None:
        """Return the cell that covers a place."""
        if place not in self._nearest:
            nearest = min(self.cells, key=lambda cell: _octaves(cell.at, place), default=None)
            is_near = nearest is not None and _octaves(nearest.at, place) < CELL_OCTAVES
            self._nearest[place] = nearest if is_near else None
        return self._nearest[place]

    def place_near(self, place: int) -> int:
        """Return the place of the cell that covers a place, or the place itself."""
        cell = self.near(place)
        return cell.at if cell else place

    def cell(self, place: int, shape: Callable[[float], float], seconds: float) -> CostCell:
        """Return the cell that covers a place; it may be a new one.

        Args:
            seconds: of the first cell of a curve.
        """
        cell = self.near(place)
        if cell is not None:
            return cell
        index, count = bisect_left(self.places, place), len(self.cells)
        if count:
            seconds = self.at(place, shape)
        is_between = 0 < index < count and self.cells[index].is_measured
        cell = CostCell(place, seconds, is_measured=is_between)
        self.cells.insert(index, cell)
        self.places.insert(index, place)
        self._nearest.clear()
        self._values = []
        return cell


def fit_shape(parts: Sequence[CostPart], *, drafts_blocks: bool = False) -> CostShape:
    """Choose the shape nearest to steps or parts of steps, whatever their scale."""
    known = [(part, math.log(part.seconds)) for part in parts]

    def misfit(octaves: tuple[int, int]) -> float:
        shape = _shape(octaves, drafts_blocks)
        errors = [log_s - math.log(shape.relative(part)) for part, log_s in known]
        mean = sum(errors) / len(errors)
        away = octaves[0] ** 2 + octaves[1] ** 2
        return sum((error - mean) ** 2 for error in errors) + FIT_PENALTY * away

    if not known:
        return CostShape(drafts_blocks=drafts_blocks)
    return _shape(min(product(FIT_OCTAVES, FIT_OCTAVES), key=misfit), drafts_blocks)


def increasing(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Average neighbours that fall until none does (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        count = 1
        while pools and pools[-1][0] > value:
            other, heavy, members = pools.pop()
            value = (other * heavy + value * weight) / (heavy + weight)
            weight, count = weight + heavy, count + members
        pools.append((value, weight, count))
    return [value for value, _, count in pools for _ in range(count)]


def _shape(octaves: tuple[int, int], drafts_blocks: bool) -> CostShape:
    free_rows, draft_share = FREE_ROWS * 2.0 ** octaves[0], DRAFT_SHARE * 2.0 ** octaves[1]
    return CostShape(free_rows, draft_share, drafts_blocks)


def _octaves(one: int, other: int) -> float:
    return abs(math.log2(one / other))
