"""Which range decides for a batch: by its size, by the size it is padded to, or with a band.

A policy routes by one of these, and graphs are captured for what `reachable` says of the same one.
"""

from bisect import bisect_left
from typing import Protocol

from specdecode_engine.depth.ranges import BatchRange, DepthTable


class Routing(Protocol):
    """From a batch size to the range that decides for it."""

    def route(self, table: DepthTable, batch_size: int, slot: int | None) -> BatchRange:
        """Return the range for a batch; `slot` is the one that decided for the batch before."""
        ...

    def reachable(self, table: DepthTable, batch_size: int) -> tuple[BatchRange, ...]:
        """Every range that may come to decide for batches of this size."""
        ...


class ExactRouting:
    """The size itself decides."""

    def route(self, table: DepthTable, batch_size: int, slot: int | None) -> BatchRange:
        """Look the size up."""
        return table.range_of(batch_size)

    def reachable(self, table: DepthTable, batch_size: int) -> tuple[BatchRange, ...]:
        """Only that one."""
        return (table.range_of(batch_size),)


class PaddedRouting:
    """The captured size that the batch is padded to decides; without one, the size itself."""

    def __init__(self, captured: tuple[int, ...]) -> None:
        self._captured = tuple(sorted(captured))

    def route(self, table: DepthTable, batch_size: int, slot: int | None) -> BatchRange:
        """Pad the size and look it up."""
        place = bisect_left(self._captured, batch_size)
        padded = self._captured[place] if place < len(self._captured) else batch_size
        return table.range_of(padded)

    def reachable(self, table: DepthTable, batch_size: int) -> tuple[BatchRange, ...]:
        """Only that one."""
        return (self.route(table, batch_size, None),)


class BandRouting:
    """A range keeps deciding until the batch is `width` of its bound beyond it.

    A batch that goes back and forth over a bound then stays with one range.
    """

    def __init__(self, width: float = 0.125) -> None:
        self._width = width

    def route(self, table: DepthTable, batch_size: int, slot: int | None) -> BatchRange:
        """Stay with the range of `slot` where that still may decide."""
        own = table.range_of(batch_size)
        if own.lower_bound == slot:
            return own
        near = self.reachable(table, batch_size)
        kept = [entry for entry in near if entry.lower_bound == slot]
        return kept[0] if kept else own

    def reachable(self, table: DepthTable, batch_size: int) -> tuple[BatchRange, ...]:
        """The size's own range and those whose bound is within the band."""
        own = table.range_of(batch_size)
        near = {own.lower_bound: own}
        for below, above in zip(table.ranges, table.ranges[1:], strict=False):
            band = max(1, int(above.lower_bound * self._width))
            if abs(batch_size - above.lower_bound + 0.5) < band + 0.5:
                near |= {below.lower_bound: below, above.lower_bound: above}
        return tuple(near[bound] for bound in sorted(near))
