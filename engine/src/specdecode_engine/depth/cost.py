"""Seconds of a decode round by batch size, depth and KV: measured at start, refined in service."""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from specdecode_engine.depth.cost_shape import CostShape, fit_shape
from specdecode_engine.depth.knot import Knot, monotone

# Knots nearer than this are one: a third of an octave of batch size.
SAME_OCTAVES = 0.33
# Rounds after which a knot that service has found tells of the shape as a measured one does.
ROUNDS_TO_FIT = 2


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One measured round; `kv_tokens` over all of its requests."""

    batch_size: int
    num_steps: int
    kv_tokens: int
    seconds: float


class CostModel:
    """A surface over batch size and depth, and a slope in KV tokens.

    The surface goes through knots, one row of them per depth, straight between neighbours, and by
    the fitted `CostShape` beyond them. It never falls with batch size or depth: knots that say so
    are averaged. Without any knot the shape alone compares depths, in unknown units, until the
    first round gives them.
    """

    def __init__(self, points: Iterable[CostPoint] = ()) -> None:
        measured = tuple(points)
        self._slope, self._slope_per_step = _slopes(measured)
        self._slope_is_measured = self._slope + self._slope_per_step > 0.0
        self._rows: dict[int, list[Knot]] = {}
        for (steps, size), cell in sorted(_cells(measured).items()):
            self._rows.setdefault(steps, []).append(Knot(size, self._log_rest(cell)))
        self._shape = self._fit()
        self._scale = 1.0
        self._surfaces: dict[int, list[float]] = {}
        self._nearest: dict[tuple[int, int], Knot | None] = {}

    def _log_rest(self, cell: Sequence[CostPoint]) -> float:
        """Average log-seconds without the part of the KV, over the shortest contexts of a cell.

        What the slope misses would else be carried from long contexts into the level.
        """
        shortest = min(point.kv_tokens for point in cell)
        near = [point for point in cell if point.kv_tokens <= 2 * shortest]
        rests = [
            max(point.seconds - self._kv_seconds(point), 0.1 * point.seconds) for point in near
        ]
        return sum(map(math.log, rests)) / len(rests)

    def seconds(self, batch_size: int, num_steps: int, kv_tokens: int) -> float:
        """Expect a round's time, drafting included."""
        surface = self.surface(batch_size, num_steps)
        return surface[num_steps] + self.seconds_per_kv_token(num_steps) * kv_tokens

    def surface(self, batch_size: int, deepest: int) -> list[float]:
        """Expect the seconds of depth 0 … `deepest` at least, without the part of the KV."""
        found = self._surfaces.get(batch_size)
        if found is None or len(found) <= deepest:
            found = self._surfaces[batch_size] = self._evaluate(batch_size, deepest)
        return found

    def seconds_per_kv_token(self, num_steps: int) -> float:
        """What a token with KV adds to a round.

        Where attention is bound by memory that is the same at every depth; where it is bound by
        arithmetic, as on a CPU, it grows with the rows of the round.
        """
        return self._slope + self._slope_per_step * num_steps

    def _kv_seconds(self, point: CostPoint) -> float:
        return self.seconds_per_kv_token(point.num_steps) * point.kv_tokens

    def trials(self, batch_size: int, num_steps: int) -> int:
        """Count the rounds of service that refined the knot for a cell."""
        knot = self._near(batch_size, num_steps)
        return knot.rounds if knot else 0

    def refine(self, batch_size: int, num_steps: int, kv_tokens: int, seconds: float) -> None:
        """Learn from a round of service; a spike moves little."""
        if seconds <= 0.0:
            return
        if not self._rows:
            expected = self.seconds(batch_size, num_steps, kv_tokens)
            self._scale *= seconds / expected
            self._surfaces.clear()
        expected = self.seconds(batch_size, num_steps, kv_tokens)
        knot = self._near(batch_size, num_steps) or self._insert(batch_size, num_steps)
        has_moved = knot.learn(math.log(seconds / expected), kv_tokens, seconds)
        if knot.is_new and knot.rounds in (ROUNDS_TO_FIT, 4 * ROUNDS_TO_FIT):
            self._shape = self._fit()
            has_moved = True
        if has_moved:
            self._share()
            self._surfaces.clear()

    def points(self) -> tuple[CostPoint, ...]:
        """Describe the surface by its knots, without KV, as it is now."""
        return tuple(
            CostPoint(knot.batch_size, steps, 0, knot.seconds()) for steps, knot in self._knots()
        )

    def _fit(self) -> CostShape:
        knots = [
            (knot, steps)
            for steps, knot in self._knots()
            if knot.rounds >= ROUNDS_TO_FIT or not knot.is_new
        ]
        return fit_shape([(knot.batch_size, steps, knot.seconds()) for knot, steps in knots])

    def _knots(self) -> list[tuple[int, Knot]]:
        return [(steps, knot) for steps, row in sorted(self._rows.items()) for knot in row]

    def _near(self, batch_size: int, num_steps: int) -> Knot | None:
        cell = batch_size, num_steps
        if cell not in self._nearest:
            self._nearest[cell] = self._look_up(batch_size, num_steps)
        return self._nearest[cell]

    def _look_up(self, batch_size: int, num_steps: int) -> Knot | None:
        def octaves(knot: Knot) -> float:
            return abs(math.log2(knot.batch_size / batch_size))

        nearest = min(self._rows.get(num_steps, ()), key=octaves, default=None)
        return nearest if nearest and octaves(nearest) < SAME_OCTAVES else None

    def _insert(self, batch_size: int, num_steps: int) -> Knot:
        knot = Knot(batch_size, math.log(self.surface(batch_size, num_steps)[num_steps]), new=True)
        self._nearest.clear()
        row = self._rows.setdefault(num_steps, [])
        row.append(knot)
        row.sort(key=lambda other: other.batch_size)
        return knot

    def _share(self) -> None:
        """Move the knots that service has not reached if the others turned out cheaper.

        Never up: a depth that looks too cheap is tried and found out, one that looks too dear not.
        """
        knots = [knot for _, knot in self._knots()]
        visited = [knot.moved() for knot in knots if knot.rounds and not knot.is_new]
        level = min(sum(visited) / (len(visited) + 1.0), 0.0)
        for knot in knots:
            if not knot.rounds:
                knot.shift_to(level)
        if not self._slope_is_measured:
            self._tilt(knots)

    def _tilt(self, knots: Sequence[Knot]) -> None:
        """Take the slope from how time went with KV at each knot by itself."""
        # A third of the KV's mean counts as no variation: what time does then is noise.
        variance = sum(knot.kv_variance + 0.1 * knot.kv_mean**2 for knot in knots)
        if variance <= 0.0:
            return
        slope = max(sum(knot.kv_covariance for knot in knots) / variance, 0.0)
        slope = min(slope, min((knot.most_slope() for knot in knots if knot.rounds), default=0.0))
        for knot in knots:
            if knot.rounds:
                knot.tilt(slope - self._slope)
        self._slope = slope

    def _evaluate(self, batch_size: int, deepest: int) -> list[float]:
        depths = sorted(self._rows)
        if not depths:
            shape = self._shape
            return [self._scale * shape.relative(batch_size, k) for k in range(deepest + 1)]
        known = [_along(self._rows[steps], batch_size, steps, self._shape) for steps in depths]
        known = monotone(known, [1.0] * len(known))
        return [_across(depths, known, batch_size, k, self._shape) for k in range(deepest + 1)]


def _along(row: Sequence[Knot], batch_size: int, steps: int, shape: CostShape) -> float:
    """Evaluate one depth's row at a batch size."""
    sizes = [knot.batch_size for knot in row]
    values = monotone([knot.seconds() for knot in row], [knot.rounds + 1.0 for knot in row])
    return _piecewise(sizes, values, batch_size, lambda size: shape.relative(size, steps))


def _across(
    depths: Sequence[int], values: Sequence[float], batch_size: int, steps: int, shape: CostShape
) -> float:
    """Evaluate between the rows of a batch size."""
    return _piecewise(depths, values, steps, lambda depth: shape.relative(batch_size, depth))


def _piecewise(
    places: Sequence[int], values: Sequence[float], at: int, form: Callable[[int], float]
) -> float:
    """Go straight between places and by the form beyond them."""
    above = bisect_left(places, at)
    if above < len(places) and places[above] == at:
        return values[above]
    if above == 0 or above == len(places):
        edge = min(above, len(places) - 1)
        return values[edge] * form(at) / form(places[edge])
    left, right = places[above - 1], places[above]
    share = (at - left) / (right - left)
    return values[above - 1] + share * (values[above] - values[above - 1])


def _slopes(points: Sequence[CostPoint]) -> tuple[float, float]:
    """Fit seconds per KV token as a part for every depth and one per step; neither is negative.

    Each cell gives a slope by least squares; a straight line in depth goes through those.
    """
    found: list[tuple[float, float, float]] = []  # depth, slope, weight
    for (steps, _), cell in _cells(points).items():
        kv = sum(point.kv_tokens for point in cell) / len(cell)
        mean = sum(point.seconds for point in cell) / len(cell)
        variance = sum((point.kv_tokens - kv) ** 2 for point in cell)
        covariance = sum((point.kv_tokens - kv) * (point.seconds - mean) for point in cell)
        if variance:
            found.append((steps, covariance / variance, variance))
    weight = sum(one for _, _, one in found)
    if not weight:
        return 0.0, 0.0
    depth = sum(steps * one for steps, _, one in found) / weight
    level = sum(slope * one for _, slope, one in found) / weight
    spread = sum(one * (steps - depth) ** 2 for steps, _, one in found)
    rise = sum(one * (steps - depth) * (slope - level) for steps, slope, one in found)
    per_step = max(rise / spread, 0.0) if spread else 0.0
    base = level - per_step * depth
    if base < 0.0:  # through the origin, then
        return 0.0, max(level / depth, 0.0) if depth and per_step else 0.0
    return base, per_step


def _cells(points: Sequence[CostPoint]) -> dict[tuple[int, int], list[CostPoint]]:
    cells: dict[tuple[int, int], list[CostPoint]] = {}
    for point in points:
        cells.setdefault((point.num_steps, point.batch_size), []).append(point)
    return cells
