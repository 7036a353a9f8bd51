"""The memory that one call of a C kernel touches, as regions that another process can rebuild.

Spans that overlap (such as columns of one projection) share a region, so writes through one pointer
are seen through another, as in the caller.
"""

import ctypes
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

LINE = 64
"""Bytes. A region keeps its address modulo this; as in driver.c."""


@dataclass(frozen=True, slots=True)
class Span:
    """Bytes from `start` to before `end` that a kernel reads, and writes if `is_written`."""

    start: int
    end: int
    is_written: bool = False


@dataclass(frozen=True, slots=True)
class Link:
    """A pointer that lies at address `at` and points to `target`."""

    at: int
    target: int


@dataclass(frozen=True, slots=True)
class Touched:
    """What a call touches: its spans, and the pointers inside of them."""

    spans: Sequence[Span]
    links: Sequence[Link] = ()


class Image:
    """The regions of a call; addresses are those of this process."""

    def __init__(self, touched: Touched) -> None:
        self.regions = merge(touched.spans)
        self._starts = [region.start for region in self.regions]
        self._links = [link for link in touched.links if self.holds(link.target)]

    def packed(self) -> bytes:
        """Regions with their bytes, then links; numbers of 64 bits."""
        parts = [_numbers(len(self.regions))]
        for region in self.regions:
            size = region.end - region.start
            parts += [_numbers(size, region.start % LINE, region.is_written)]
            parts += [ctypes.string_at(region.start, size)]
        parts += [_numbers(len(self._links))]
        parts += [self.pointer(link.at) + self.pointer(link.target) for link in self._links]
        return b"".join(parts)

    def holds(self, address: int) -> bool:
        """Whether an address is in a region; that of an empty tensor is not."""
        index = self._index(address)
        return index >= 0 and address < self.regions[index].end

    def pointer(self, address: int) -> bytes:
        """An address that a region holds, as the number of the region and the offset in it."""
        index = self._index(address)
        return _numbers(index, address - self._starts[index])

    def _index(self, address: int) -> int:
        return bisect_right(self._starts, address) - 1


def merge(spans: Sequence[Span]) -> list[Span]:
    """Unite spans that overlap; those that only touch stay apart."""
    regions: list[Span] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        last = regions[-1] if regions else None
        if last is not None and span.start < last.end:
            is_written = last.is_written or span.is_written
            regions[-1] = Span(last.start, max(last.end, span.end), is_written)
        elif span.end > span.start:
            regions.append(span)
    return regions


def _numbers(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)
