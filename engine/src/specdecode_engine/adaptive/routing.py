"""Which range decides for a batch: by its size, by its padded size, or with hysteresis.

A policy routes by one of these, and CUDA graphs are captured for what the same routing can reach.
"""

from bisect import bisect_left
from typing import Protocol

from specdecode_engine.adaptive.table import BatchRange, RangeTable


class Routing(Protocol):
    """From a batch size to the range that decides for it."""

    def route(self, table: RangeTable, batch_size: int, range_start: int | None) -> BatchRange:
        """Return the range for a batch; `range_start` is the range of the batch before."""
        ...

    def reachable(self, table: RangeTable, batch_size: int) -> tuple[BatchRange, ...]:
        """Every range that may decide for batches of this size."""
        ...


class ExactRouting:
    """By the batch size."""

    def route(self, table: RangeTable, batch_size: int, range_start: int | None) -> BatchRange:
        """Look the size up."""
        return table.range_of(batch_size)

    def reachable(self, table: RangeTable, batch_size: int) -> tuple[BatchRange, ...]:
        """Only that one."""
        return (table.range_of(batch_size),)


class PaddedRouting:
    """By the captured size that the batch is padded to; without one, by the batch size."""

    def __init__(self, captured: tuple[int, ...]) -> None:
        self._captured = tuple(sorted(captured))

    def route(self, table: RangeTable, batch_size: int, range_start: int | None) -> BatchRange:
        """Pad the size and look it up."""
        place = bisect_left(self._captured, batch_size)
        padded = self._captured[place] if place < len(self._captured) else batch_size
        return table.range_of(padded)

    def reachable(self, table: RangeTable, batch_size: int) -> tuple[BatchRange, ...]:
        """Only that one."""
        return (self.route(table, batch_size, None),)


class BandRouting:
    """By the batch size, with hysteresis of `width` of a range's bound.

    A batch whose size alternates around a bound then keeps one range.
    """

    def __init__(self, width: float = 0.125) -> None:
        self._width = width

    def route(self, table: RangeTable, batch_size: int, range_start: int | None) -> BatchRange:
        """Keep the range of `range_start` while it is reachable."""
        own = table.range_of(batch_size)
        if own.lower_bound == range_start:
            return own
        near = self.reachable(table, batch_size)
        kept = [entry for entry in near if entry.lower_bound == range_start]
        return kept[0] if kept else own

    def reachable(self, table: RangeTable, batch_size: int) -> tuple[BatchRange, ...]:
        """The size's own range and those whose bound is within the band."""
        own = table.range_of(batch_size)
        near = {own.lower_bound: own}
        for below, above in zip(table.ranges, table.ranges[1:], strict=False):
            band = max(1, int(above.lower_bound * self._width))
            if above.lower_bound - band <= batch_size < above.lower_bound + band:
                near |= {below.lower_bound: below, above.lower_bound: above}
        return tuple(near[bound] for bound in sorted(near))
