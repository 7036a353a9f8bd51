"""Seconds of a decode step: a curve over verified rows, drafting, and KV tokens.

    seconds = verify(rows) + first(batch size) + (draft steps - 1) * further(batch size)
              + (slope + slope per row of a request * rows / batch size) * KV tokens

Each part is measured at start and refined by every step of service. Without draft steps nothing is
drafted. A block is drafted in the first step; further ones take no time.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from specdecode_engine.adaptive.cost_curve import (
    MIN_GAIN,
    CostCell,
    CostCurve,
    CostPart,
    fit_shape,
)


@dataclass(frozen=True, slots=True)
class CostPoint:
    """One measured step; `kv_tokens` over all of its requests.

    `rows` are those that the target computed; 0: draft steps + 1 for each request, as for chains
    that are verified wholly.
    """

    batch_size: int
    num_steps: int
    kv_tokens: int
    seconds: float
    rows: int = 0

    @property
    def verify_rows(self) -> int:
        return self.rows or self.batch_size * (self.num_steps + 1)


class VerifyPiece(NamedTuple):
    """A part of the curve over rows, up to `end` of them, on which it is linear."""

    end: float
    start: float
    seconds: float  # at `start`
    per_row: float
    least_per_row: float  # of this piece and those after it


class CostModel:
    """A curve over rows of the target, two of drafting over batch sizes, and slopes in KV tokens.

    Beyond what was measured a fitted `CostShape` continues. Without any cell the shape alone
    compares candidates, in unknown units, until the first served step determines them.

    Args:
        drafts_blocks: all draft steps but 0 take the same time to draft.
    """

    def __init__(self, points: Iterable[CostPoint] = (), *, drafts_blocks: bool = False) -> None:
        self._drafts_blocks = drafts_blocks
        measured = tuple(points)
        self.kv_slopes = _kv_slopes(measured)  # seconds per KV token, and per row of a request
        self._scale = 1.0
        self._verify, self._first, self._further = CostCurve(), CostCurve(), CostCurve()
        self._known: dict[int, tuple[float, float]] = {}  # drafting by batch size
        self._pieces: tuple[VerifyPiece, ...] = ()
        self._served = Counter[tuple[int, int]]()  # steps by cell of batch sizes, draft steps
        steps = [self._mean(group) for group in _by_cell(measured).values()]
        self._shape = fit_shape(steps, drafts_blocks=drafts_blocks)
        self._divide_measured(steps)

    def seconds(
        self, batch_size: int, num_steps: int, kv_tokens: int, rows: int | None = None
    ) -> float:
        """Expected seconds of a step, drafting included; by default it verifies whole chains."""
        rows = batch_size * (num_steps + 1) if rows is None else rows
        kv_s = self.seconds_per_kv_token(rows / batch_size) * kv_tokens
        return self.verify(rows) + self.drafting(batch_size, num_steps) + kv_s

    def verify(self, rows: int) -> float:
        """Expected seconds of the target over this many rows, without the part of the KV."""
        if not self._verify.cells:
            return self._scale * self._shape.verify(rows)
        return self._verify.at(rows, self._shape.verify)

    def verify_pieces(self) -> tuple[VerifyPiece, ...]:
        """Return the curve over rows as linear pieces, ascending; the last one has no end."""
        if not self._pieces:
            curve = self._verify
            starts, values = [0, *curve.places], [self.verify(0), *curve.values()]
            end = 2 * (starts[-1] or 1)
            ends, end_values = (*starts[1:], end), (*values[1:], self.verify(end))
            slopes = [
                (stop_s - start_s) / (stop - start)
                for start, start_s, stop, stop_s in zip(
                    starts, values, ends, end_values, strict=True
                )
            ]
            least = [*accumulate(reversed(slopes), min)][::-1]
            columns = (*starts[1:], math.inf), starts, values, slopes, least
            self._pieces = tuple(map(VerifyPiece, *columns))
        return self._pieces

    def drafting(self, batch_size: int, num_steps: int) -> float:
        """Expected seconds of drafting."""
        first_s, further_s = self._draft_steps(batch_size)
        return first_s + (num_steps - 1) * further_s if num_steps else 0.0

    def seconds_per_kv_token(self, rows_per_request: float) -> float:
        slope, per_row = self.kv_slopes
        return slope + per_row * rows_per_request

    def steps(self, batch_size: int, num_steps: int) -> int:
        """Served steps with as many draft steps, at batch sizes near this one."""
        return self._served[self._first.place_near(batch_size), num_steps]

    def refine(
        self,
        batch_size: int,
        num_steps: int,
        kv_tokens: int,
        seconds: float,
        rows: int | None = None,
    ) -> None:
        """Learn from a served step; durations that are not positive numbers are ignored."""
        if not 0.0 < seconds < math.inf:
            return
        rows = batch_size * (num_steps + 1) if rows is None else rows
        expected = self.seconds(batch_size, num_steps, kv_tokens, rows)
        verify_s = 0.0
        if not self._verify.cells:
            self._scale *= seconds / expected
            expected, verify_s = seconds, self.verify(rows)
            self._forget()
        parts = [self._verify.cell(rows, self._shape.verify, verify_s)]
        if num_steps:
            first_s, further_s = self._draft_steps(batch_size)
            parts.append(self._first.cell(batch_size, self._shape.draft_step, first_s))
            if num_steps > 1 and not self._drafts_blocks:
                parts.append(self._further.cell(batch_size, self._shape.draft_step, further_s))
        self._served[self._first.place_near(batch_size), num_steps] += 1
        if self._refine(parts, math.log(seconds / expected), expected):
            self._forget()

    def parts(self) -> list[CostPart]:
        """Return every cell as a part of a step."""
        verify = [CostPart(cell.at, 0, 0, cell.seconds) for cell in self._verify.cells]
        drafting = (*self._first.cells, *self._further.cells)
        return verify + [CostPart(0, cell.at, 1, cell.seconds) for cell in drafting]

    def _refine(self, parts: Sequence[CostCell], log_ratio: float, expected: float) -> bool:
        """Move all parts of a step by its ratio, by the least known one's weight.

        Nothing shows which of them took longer: the machine as a whole, most likely.
        """
        gain, has_moved = max([cell.gain for cell in parts]), False
        for cell in parts:
            has_moved |= cell.refine(log_ratio, gain, expected)
            if not cell.is_measured and cell.steps.bit_count() == 1:  # after 1, 2, 4, … steps
                self._shape = fit_shape(self.parts(), drafts_blocks=self._drafts_blocks)
                has_moved = True
        return has_moved

    def _forget(self) -> None:
        """Compute the curves again when they are used next."""
        self._known.clear()
        self._pieces = ()
        for curve in (self._verify, self._first, self._further):
            curve.forget_values()

    def _mean(self, group: Sequence[CostPoint]) -> CostPart:
        """Average the points of a cell with the least KV, less the part of the KV.

        Points with more KV would add the error of the slope to the level.
        """
        least, total, one = min(point.kv_tokens for point in group), 0.0, group[0]
        nearest = [point for point in group if point.kv_tokens <= 2 * least]
        kv_token_s = self.seconds_per_kv_token(one.verify_rows / one.batch_size)
        for point in nearest:
            seconds = point.seconds - kv_token_s * point.kv_tokens
            total += math.log(max(seconds, MIN_GAIN * point.seconds))
        mean_s = math.exp(total / len(nearest))
        return CostPart(one.verify_rows, one.batch_size, one.num_steps, mean_s)

    def _divide_measured(self, steps: Sequence[CostPart]) -> None:
        """Divide measured steps into the target's part and drafting.

        Plain steps are the target's part alone. Drafting is the rest of steps with no more rows
        than plain ones have, and the target's part over more rows the rest of the others.
        """
        verify = [(step.rows, step.seconds) for step in steps if not step.num_steps]
        self._verify = CostCurve(verify)
        reach = max(verify, default=(0, 0.0))[0]
        drafting: dict[int, dict[int, float]] = {}
        beyond = []
        for step in steps:
            if step.num_steps and (step.rows <= reach or not verify):
                rest_s = max(step.seconds - self._verify_share(step), MIN_GAIN * step.seconds)
                drafting.setdefault(step.batch_size, {})[step.num_steps] = rest_s
            elif step.num_steps:
                beyond.append(step)
        self._first, self._further = self._drafting_curves(drafting)
        for step in beyond:
            rest_s = step.seconds - self.drafting(step.batch_size, step.num_steps)
            verify.append((step.rows, max(rest_s, MIN_GAIN * step.seconds)))
        if not verify:
            verify = [(step.rows, self._verify_share(step)) for step in steps]
        self._verify = CostCurve(verify)
        self._forget()

    def _verify_share(self, step: CostPart) -> float:
        """Seconds of a step's forward of the target, by the shape if no plain step was measured."""
        if self._verify.cells:
            return self.verify(step.rows)
        return step.seconds * self._shape.verify(step.rows) / self._shape.relative(step)

    def _drafting_curves(
        self, drafting: dict[int, dict[int, float]]
    ) -> tuple[CostCurve, CostCurve]:
        """Make curves of the first draft step and of a further one.

        Args:
            drafting: seconds by batch size and draft steps.
        """
        first, further = [], []
        for size, by_steps in drafting.items():
            (few, few_s), (many, many_s) = min(by_steps.items()), max(by_steps.items())
            step_s = (many_s - few_s) / (many - few) if many > few else few_s / few
            step_s = max(step_s, MIN_GAIN * many_s / many)
            first.append(
                (
                    size,
                    few_s
                    if self._drafts_blocks
                    else max(few_s - (few - 1) * step_s, step_s * MIN_GAIN),
                )
            )
            further.append((size, step_s))
        return CostCurve(first), CostCurve([] if self._drafts_blocks else further)

    def _draft_steps(self, batch_size: int) -> tuple[float, float]:
        """Seconds of the first draft step and of a further one."""
        found = self._known.get(batch_size)
        if found is not None:
            return found
        shape_s = self._shape.draft_step(batch_size)
        shape_s *= self.verify(batch_size) / self._shape.verify(batch_size)
        first_s, further_s = (
            curve.at(batch_size, self._shape.draft_step) if curve.cells else shape_s
            for curve in (self._first, self._further)
        )
        found = first_s, 0.0 if self._drafts_blocks else further_s
        self._known[batch_size] = found
        return found


def _kv_slopes(points: Sequence[CostPoint]) -> tuple[float, float]:
    """Fit seconds per KV token as a constant and a part per row of a request; neither is negative.

    Each cell gives a slope by least squares; a straight line in rows goes through those.
    """
    found: list[tuple[float, float, float]] = []  # rows of a request, slope, weight
    for group in _by_cell(points).values():
        rows = group[0].verify_rows / group[0].batch_size
        kv = sum(point.kv_tokens for point in group) / len(group)
        mean = sum(point.seconds for point in group) / len(group)
        variance = sum((point.kv_tokens - kv) ** 2 for point in group)
        covariance = sum((point.kv_tokens - kv) * (point.seconds - mean) for point in group)
        if variance:
            found.append((rows, covariance / variance, variance))
    weight = sum(one for _, _, one in found)
    if not weight:
        return 0.0, 0.0
    middle = sum(rows * one for rows, _, one in found) / weight
    level = sum(slope * one for _, slope, one in found) / weight
    spread = sum(one * (rows - middle) ** 2 for rows, _, one in found)
    rise = sum(one * (rows - middle) * (slope - level) for rows, slope, one in found)
    per_row = max(rise / spread, 0.0) if spread else 0.0
    base = level - per_row * middle
    if base < 0.0:  # through the origin, then
        return 0.0, max(level / middle, 0.0) if middle and per_row else 0.0
    return base, per_row


def _by_cell(points: Iterable[CostPoint]) -> dict[tuple[int, int, int], list[CostPoint]]:
    cells: dict[tuple[int, int, int], list[CostPoint]] = {}
    for point in points:
        cell = point.num_steps, point.batch_size, point.verify_rows
        cells.setdefault(cell, []).append(point)
    return cells
