"""The batch sizes worth capturing, and the one that a batch is padded to."""

from bisect import bisect_left
from collections.abc import Iterable


def batch_sizes(max_running: int, wanted: Iterable[int] | None = None) -> tuple[int, ...]:
    """List the sizes, ascending: the user's own, or enough that padding stays small.

    The usual ones are 1, 2, 4, 8, 12, 16, 24, 32, … 64, then quarters of a power of two: beyond 16
    at most a third of the rows are padding. The largest batch is always among them. A size that
    the user gives beyond the largest batch means the largest batch.
    """
    if wanted is not None:
        return tuple(sorted({min(size, max_running) for size in wanted}))
    sizes, size = [], 1
    while size < max_running:
        sizes.append(size)
        size += _gap(size)
    return (*sizes, max_running)


def padded_size(sizes: tuple[int, ...], batch_size: int) -> int | None:
    """Return the smallest of ascending `sizes` that holds the batch; None if none does."""
    place = bisect_left(sizes, batch_size)
    return sizes[place] if place < len(sizes) else None


def _gap(size: int) -> int:
    if size < 8:
        return size
    if size < 64:
        return 4 if size < 16 else 8
    power: int = 1 << (size.bit_length() - 1)
    return power // 4
