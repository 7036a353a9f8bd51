"""Seconds of a decode step by batch size, draft steps and KV tokens: measured, then refined."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
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
# Batch sizes that share a cell: those within a third of an octave.
CELL_OCTAVES = 0.33
# Maximum log-seconds that one step contributes: larger values are spikes.
MAX_LOG_RATIO = 0.3
# The weight of a step in its cell never falls below this, so that a slower machine is noticed.
MIN_GAIN = 0.02
# Log-seconds that a cell must have moved by before costs are computed again.
RESOLUTION = 0.008


def chain_tokens(num_steps: int) -> int:
    """Return the drafted tokens of a chain."""
    return num_steps


class Estimates(NamedTuple):
    """Estimates of a range's candidates for one batch; a tuple, as each step makes one."""

    candidates: tuple[int, ...]
    rates: list[float]  # expected tokens per second of one request, by candidate
    seconds: list[float]  # expected of a step, by candidate

    def loss(self, index: int) -> float:
        """Seconds that a step with a candidate loses to the best one."""
        return self.seconds[index] * (1.0 - self.rates[index] / max(self.rates))

    def loss_of(self, index: int, accepted: tuple[int, ...]) -> float:
        """Seconds that a step lost which accepted so many drafts of each request."""
        tokens = 1.0 + sum(accepted) / len(accepted)
        return self.seconds[index] - tokens / max(self.rates)

    def refusal(self, index: int) -> float:
        """Seconds that a step loses to plain decoding if no draft is accepted."""
        return self.seconds[index] - self.seconds[0]


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One measured step; `kv_tokens` over all of its requests."""

    batch_size: int
    num_steps: int
    kv_tokens: int
    seconds: float
    verify_tokens: int | None = None  # of a request on average; None: all that are drafted


@dataclass(frozen=True, slots=True)
class CostShape:
    """Seconds of a step relative to an almost empty one, by batch size and draft steps.

    A block takes one forward of the draft over a few rows per request, whatever is verified of it.
    """

    free_rows: float = FREE_ROWS
    draft_share: float = DRAFT_SHARE
    drafts_blocks: bool = False

    def relative(self, batch_size: float, num_steps: float, verified: float | None = None) -> float:
        """Return the time; of a request, the tokens of `verified` or of all steps are verified."""
        forwards, rows = num_steps, batch_size
        verified = num_steps if verified is None else verified
        if self.drafts_blocks:
            forwards, rows = min(num_steps, 1.0), batch_size * BLOCK_ROWS
        drafting = self.draft_share * forwards * (1.0 + rows / self.free_rows)
        return 1.0 + batch_size * (verified + 1.0) / self.free_rows + drafting

    def scaled(self, rows_octaves: int, share_octaves: int) -> "CostShape":
        """Return the shape with both factors multiplied by powers of two."""
        free_rows = self.free_rows * 2.0**rows_octaves
        draft_share = self.draft_share * 2.0**share_octaves
        return CostShape(free_rows, draft_share, self.drafts_blocks)


USUAL_SHAPE = CostShape()


class CostCell:
    """Log-seconds of a step at one batch size and number of draft steps, without the KV part."""

    __slots__ = ("_used", "batch_size", "is_measured", "log_seconds", "steps")

    def __init__(self, batch_size: int, log_seconds: float, is_measured: bool) -> None:
        self.batch_size = batch_size
        self.log_seconds = self._used = log_seconds
        self.is_measured = is_measured
        self.steps = 0  # served steps that refined it

    @property
    def seconds(self) -> float:
        return math.exp(self.log_seconds)

    def copy(self) -> "CostCell":
        other = CostCell(self.batch_size, self.log_seconds, self.is_measured)
        other._used, other.steps = self._used, self.steps
        return other

    def refine(self, log_ratio: float) -> bool:
        """Add seen over expected seconds; return whether the cell has moved noticeably."""
        self.steps += 1
        if self.is_measured or self.steps > 1:
            log_ratio = min(max(log_ratio, -MAX_LOG_RATIO), MAX_LOG_RATIO)
        weight = 1.0 / (self.steps + self.is_measured)  # a measured point counts as one step
        self.log_seconds += log_ratio * max(weight, MIN_GAIN)
        if abs(self.log_seconds - self._used) < RESOLUTION:
            return False
        self._used = self.log_seconds
        return True


class CostModel:
    """A grid over batch size and draft steps, and a slope in KV tokens.

    One row of cells per number of draft steps, interpolated linearly between cells, and
    extrapolated by a fitted `CostShape`. Costs never fall with batch size or draft steps: cells
    that contradict this are averaged. Without any cell the shape alone compares candidates, in
    unknown units, until the first served step determines them.

    Args:
        shape: what a fit starts from. If it drafts blocks, all draft steps but 0 take the same time
            to draft; costs between 0 draft steps and the fewest measured otherwise then follow the
            shape, which jumps after 0.
    """

    def __init__(self, points: Iterable[CostPoint] = (), shape: CostShape = USUAL_SHAPE) -> None:
        self._usual_shape = shape
        measured = tuple(points)
        self._slope, self._slope_per_step = _kv_slopes(measured)
        self._rows: dict[int, list[CostCell]] = {}
        for (steps, size), group in sorted(_by_cell(measured).items()):
            cell = CostCell(size, self._log_seconds(group), is_measured=True)
            self._rows.setdefault(steps, []).append(cell)
        self._shape = fit_shape(self.cells(), shape)
        self._scale = 1.0
        self._surfaces: dict[int, list[float]] = {}
        self._nearest: dict[tuple[int, int], CostCell | None] = {}

    @property
    def is_measured(self) -> bool:
        """Whether any step was measured: without, seconds are in unknown units."""
        return bool(self._rows)

    def seconds(self, batch_size: int, num_steps: int, kv_tokens: int) -> float:
        """Expected seconds of a step, drafting included."""
        surface = self.surface(batch_size, num_steps)
        return surface[num_steps] + self.seconds_per_kv_token(num_steps) * kv_tokens

    def surface(self, batch_size: int, most_steps: int) -> list[float]:
        """Expected seconds of 0 … `most_steps` draft steps at least, without the part of the KV."""
        found = self._surfaces.get(batch_size)
        if found is None or len(found) <= most_steps:
            found = self._surfaces[batch_size] = self._evaluate(batch_size, most_steps)
        return found

    def seconds_per_kv_token(self, num_steps: int) -> float:
        """Seconds that a token with KV adds to a step.

        Independent of the draft steps where attention is bound by memory; where it is bound by
        arithmetic, as on a CPU, proportional to the rows of the step.
        """
        return self._slope + self._slope_per_step * num_steps

    def steps(self, batch_size: int, num_steps: int) -> int:
        cell = self._cell(batch_size, num_steps)
        return cell.steps if cell else 0

    def refine(self, batch_size: int, num_steps: int, kv_tokens: int, seconds: float) -> None:
        """Learn from a served step; durations that are not positive numbers are ignored."""
        if not 0.0 < seconds < math.inf:
            return
        expected = self.seconds(batch_size, num_steps, kv_tokens)
        if not self._rows:
            self._scale *= seconds / expected
            self._surfaces.clear()
            expected = seconds
        cell = self._cell(batch_size, num_steps) or self._insert(batch_size, num_steps)
        has_moved = cell.refine(math.log(seconds / expected))
        if not cell.is_measured and cell.steps.bit_count() == 1:  # after 1, 2, 4, … steps
            self._shape = fit_shape(self.cells(), self._usual_shape)
            has_moved = True
        if has_moved:
            self._surfaces.clear()

    def limited(
        self,
        verify_tokens: int,
        points: Iterable[CostPoint],
        drafted: Callable[[int], int] = chain_tokens,
    ) -> "CostModel":
        """Return a model of steps that verify fewer tokens than they draft.

        Args:
            verify_tokens: of a request on average. Steps that draft no more take as long as here;
                others are estimated by the shape until they are measured.
            points: measured steps that verify so many.
            drafted: returns the tokens that a request drafts, by draft steps.
        """
        limited = CostModel(shape=self._usual_shape)
        limited._slope, limited._slope_per_step = self._slope, self._slope_per_step
        limited._shape, limited._scale = self._shape, self._scale
        limited._rows = {steps: [cell.copy() for cell in row] for steps, row in self._rows.items()}
        for steps, cell in limited.cells():
            if (tokens := drafted(steps)) > verify_tokens:
                whole = self._shape.relative(cell.batch_size, steps)
                share = verify_tokens / tokens
                less = self._shape.relative(cell.batch_size, steps, share * steps)
                cell.log_seconds += math.log(less / whole)
                cell.steps, cell.is_measured = 0, False
        for point in points:
            key = point.batch_size, point.num_steps, point.kv_tokens
            limited.refine(*key, point.seconds)
        return limited

    def cells(self) -> list[tuple[int, CostCell]]:
        """Return every cell with its draft steps."""
        return [(steps, cell) for steps, row in sorted(self._rows.items()) for cell in row]

    def _log_seconds(self, group: Sequence[CostPoint]) -> float:
        """Average log-seconds of a cell's points with the least KV, less the part of the KV.

        Points with more KV would add the error of the slope to the level.
        """
        least, total = min(point.kv_tokens for point in group), 0.0
        nearest = [point for point in group if point.kv_tokens <= 2 * least]
        for point in nearest:
            kv_s = self.seconds_per_kv_token(point.num_steps) * point.kv_tokens
            total += math.log(max(point.seconds - kv_s, MIN_GAIN * point.seconds))
        return total / len(nearest)

    def _cell(self, batch_size: int, num_steps: int) -> CostCell | None:
        key = batch_size, num_steps
        if key not in self._nearest:
            self._nearest[key] = _nearest(self._rows.get(num_steps, ()), batch_size)
        return self._nearest[key]

    def _insert(self, batch_size: int, num_steps: int) -> CostCell:
        expected = self.surface(batch_size, num_steps)[num_steps]
        cell = CostCell(batch_size, math.log(expected), is_measured=False)
        self._nearest.clear()
        row = self._rows.setdefault(num_steps, [])
        row.append(cell)
        row.sort(key=lambda other: other.batch_size)
        return cell

    def _evaluate(self, batch_size: int, most_steps: int) -> list[float]:
        measured = sorted(self._rows)
        wanted = range(most_steps + 1)
        if not measured:
            return [self._scale * self._shape.relative(batch_size, steps) for steps in wanted]
        known = [self._along_row(steps, batch_size) for steps in measured]
        known = increasing(known, [1.0] * len(known))
        shape = partial(self._shape.relative, batch_size)
        if self._usual_shape.drafts_blocks and len(measured) > 1 and not measured[0]:
            drafting = [_interpolate(measured[1:], known[1:], steps, shape) for steps in wanted[1:]]
            return [known[0], *drafting]
        return [_interpolate(measured, known, steps, shape) for steps in wanted]

    def _along_row(self, num_steps: int, batch_size: int) -> float:
        row = self._rows[num_steps]
        values = increasing([cell.seconds for cell in row], [cell.steps + 1.0 for cell in row])
        sizes = [cell.batch_size for cell in row]
        return _interpolate(
            sizes, values, batch_size, lambda size: self._shape.relative(size, num_steps)
        )


def fit_shape(cells: Sequence[tuple[int, CostCell]], usual: CostShape = USUAL_SHAPE) -> CostShape:
    """Choose the shape nearest to cells with their draft steps, whatever their scale."""
    known = [(cell.batch_size, steps, cell.log_seconds) for steps, cell in cells]

    def misfit(octaves: tuple[int, int]) -> float:
        shape = usual.scaled(*octaves)
        errors = [log_s - math.log(shape.relative(size, steps)) for size, steps, log_s in known]
        mean = sum(errors) / len(errors)
        away = octaves[0] ** 2 + octaves[1] ** 2
        return sum((error - mean) ** 2 for error in errors) + FIT_PENALTY * away

    if not cells:
        return usual
    return usual.scaled(*min(product(FIT_OCTAVES, FIT_OCTAVES), key=misfit))


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


def _nearest(row: Sequence[CostCell], batch_size: int) -> CostCell | None:
    def octaves(cell: CostCell) -> float:
        return abs(math.log2(cell.batch_size / batch_size))

    nearest = min(row, key=octaves, default=None)
    return nearest if nearest and octaves(nearest) < CELL_OCTAVES else None


def _interpolate(
    known_at: Sequence[int], values: Sequence[float], at: int, shape: Callable[[int], float]
) -> float:
    """Interpolate `values` linearly between `known_at`; extrapolate in proportion to `shape`."""
    above = bisect_left(known_at, at)
    if above < len(known_at) and known_at[above] == at:
        return values[above]
    if above == 0 or above == len(known_at):
        edge = min(above, len(known_at) - 1)
        return values[edge] * shape(at) / shape(known_at[edge])
    left, right = known_at[above - 1], known_at[above]
    share = (at - left) / (right - left)
    return values[above - 1] + share * (values[above] - values[above - 1])


def _kv_slopes(points: Sequence[CostPoint]) -> tuple[float, float]:
    """Fit seconds per KV token as a constant and a part per draft step; neither is negative.

    Each cell gives a slope by least squares; a straight line in draft steps goes through those.
    """
    found: list[tuple[float, float, float]] = []  # draft steps, slope, weight
    for (steps, _), group in _by_cell(points).items():
        kv = sum(point.kv_tokens for point in group) / len(group)
        mean = sum(point.seconds for point in group) / len(group)
        variance = sum((point.kv_tokens - kv) ** 2 for point in group)
        covariance = sum((point.kv_tokens - kv) * (point.seconds - mean) for point in group)
        if variance:
            found.append((steps, covariance / variance, variance))
    weight = sum(one for _, _, one in found)
    if not weight:
        return 0.0, 0.0
    middle = sum(steps * one for steps, _, one in found) / weight
    level = sum(slope * one for _, slope, one in found) / weight
    spread = sum(one * (steps - middle) ** 2 for steps, _, one in found)
    rise = sum(one * (steps - middle) * (slope - level) for steps, slope, one in found)
    per_step = max(rise / spread, 0.0) if spread else 0.0
    base = level - per_step * middle
    if base < 0.0:  # through the origin, then
        return 0.0, max(level / middle, 0.0) if middle and per_step else 0.0
    return base, per_step


def _by_cell(points: Sequence[CostPoint]) -> dict[tuple[int, int], list[CostPoint]]:
    cells: dict[tuple[int, int], list[CostPoint]] = {}
    for point in points:
        cells.setdefault((point.num_steps, point.batch_size), []).append(point)
    return cells
