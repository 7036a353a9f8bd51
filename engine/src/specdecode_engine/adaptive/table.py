"""The speculation table in the form that policies use, and which range decides for a batch."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The candidates of batches from `lower_bound` on, and the parameters of policies."""

    lower_bound: int
    candidate_steps: tuple[int, ...]  # ascending, each once
    up_hysteresis: float = 0.0
    down_hysteresis: float = -0.25
    ceiling_coeff: float = 0.0
    ema_alpha: float = 0.2
    update_interval: int = 5
    warmup_batches: int = 10
    verify_tokens: int | None = None  # drafted tokens verified of a request on average; None: all

    def nearest(self, num_steps: int) -> int:
        """Return the largest candidate up to `num_steps`, or the smallest."""
        smaller = [steps for steps in self.candidate_steps if steps <= num_steps]
        return max(smaller) if smaller else self.candidate_steps[0]


def all_steps(ranges: Iterable[BatchRange]) -> tuple[int, ...]:
    """List every candidate of the ranges once, ascending."""
    return tuple(sorted({steps for entry in ranges for steps in entry.candidate_steps}))


class RangeTable:
    """Ranges by lower bound; a smaller batch belongs to the first.

    Args:
        table_hash: label of the table in metrics.
        max_step_s: limit of a step's time under the objective InterTokenLatency.

    Raises:
        ValueError: there is no range, or two begin at the same batch size.
    """

    def __init__(
        self,
        ranges: Iterable[BatchRange],
        table_hash: str = "",
        max_step_s: float = math.inf,
    ) -> None:
        self.table_hash = table_hash
        self.max_step_s = max_step_s
        self.ranges = tuple(sorted(ranges, key=lambda entry: entry.lower_bound))
        self._bounds = [entry.lower_bound for entry in self.ranges]
        if not self._bounds or len(set(self._bounds)) < len(self._bounds):
            raise ValueError(f"a table needs ranges of different lower bounds, got {self._bounds}")

    def range_of(self, batch_size: int) -> BatchRange:
        """Return the range with the greatest lower bound that is not above `batch_size`."""
        return self.ranges[max(bisect_right(self._bounds, batch_size) - 1, 0)]

    def candidates(self) -> tuple[int, ...]:
        return all_steps(self.ranges)

    def up_to(self, most: int | None) -> "RangeTable":
        """Replace candidates above `most`, all that a draft can draft, by it; None: keep all."""
        if most is None or self.candidates()[-1] <= most:
            return self
        cut = [
            replace(
                entry, candidate_steps=tuple(sorted({min(n, most) for n in entry.candidate_steps}))
            )
            for entry in self.ranges
        ]
        return RangeTable(cut, self.table_hash, self.max_step_s)

    def within(self, max_step_s: float) -> "RangeTable":
        """Return the same ranges with a limit of a step's time."""
        if max_step_s == self.max_step_s:
            return self
        return RangeTable(self.ranges, self.table_hash, max_step_s)


def padded_size(sizes: tuple[int, ...], batch_size: int) -> int | None:
    """Return the smallest of ascending `sizes` that holds the batch; None if none does."""
    index = bisect_left(sizes, batch_size)
    return sizes[index] if index < len(sizes) else None


class Routing(Protocol):
    """From a batch size to the range that decides; CUDA graphs are captured for what it reaches."""

    def route(self, table: RangeTable, batch_size: int, range_start: int | None) -> BatchRange:
        """Return the range for a batch; `range_start` is the range of the batch before."""

    def reachable(self, table: RangeTable, batch_size: int) -> tuple[BatchRange, ...]:
        """Every range that may decide for batches of this size."""


class PaddedRouting:
    """By the captured size that the batch is padded to; without one, by the batch size."""

    def __init__(self, captured: tuple[int, ...] = ()) -> None:
        self._captured = tuple(sorted(captured))

    def route(self, table: RangeTable, batch_size: int, range_start: int | None) -> BatchRange:
        return table.range_of(padded_size(self._captured, batch_size) or batch_size)

    def reachable(self, table: RangeTable, batch_size: int) -> tuple[BatchRange, ...]:
        return (self.route(table, batch_size, None),)


class MarginRouting:
    """By the batch size, with hysteresis of `width` of a range's bound.

    A batch whose size alternates around a bound then keeps one range.
    """

    def __init__(self, width: float = 0.125) -> None:
        self._width = width

    def route(self, table: RangeTable, batch_size: int, range_start: int | None) -> BatchRange:
        own = table.range_of(batch_size)
        if own.lower_bound == range_start:
            return own
        near = self.reachable(table, batch_size)
        return next((entry for entry in near if entry.lower_bound == range_start), own)

    def reachable(self, table: RangeTable, batch_size: int) -> tuple[BatchRange, ...]:
        own = table.range_of(batch_size)
        near = {own.lower_bound: own}
        for below, above in zip(table.ranges, table.ranges[1:], strict=False):
            margin = max(1, int(above.lower_bound * self._width))
            if above.lower_bound - margin <= batch_size < above.lower_bound + margin:
                near |= {below.lower_bound: below, above.lower_bound: above}
        return tuple(near[bound] for bound in sorted(near))
