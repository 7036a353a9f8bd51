"""Which (num_steps, batch size) pairs a table can reach: exactly those get CUDA graphs.

The num_steps at start has no special role: it is reached where the table contains it.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator

from specdecode_engine.adaptive.routing import Routing
from specdecode_engine.adaptive.table import BatchRange, RangeTable


def batch_sizes(max_running: int, wanted: Iterable[int] | None = None) -> tuple[int, ...]:
    """List the batch sizes to capture, ascending: the configured ones, or few with little padding.

    The default is 1, 2, 4, 8, 12, 16, 24, 32, … 64, then quarters of a power of two: beyond 16 at
    most a third of the rows are padding. `max_running` is always among them. A configured size
    beyond `max_running` counts as `max_running`.
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


def reachable(
    table: RangeTable, routing: Routing, sizes: tuple[int, ...], max_running: int
) -> dict[int, tuple[int, ...]]:
    """Return the captured batch sizes that each num_steps of the table can meet.

    Args:
        sizes: captured batch sizes, ascending; a batch is padded to the next of them.
        max_running: the largest batch.

    Returns:
        For every num_steps of the table, ascending: captured sizes, largest first; none where no
        batch can reach it, or only batches beyond the largest size.
    """
    pairs = set()
    for batch_size, entry in _deciders(table, routing, max_running):
        padded = padded_size(sizes, batch_size)
        if padded is not None:
            pairs |= {(steps, padded) for steps in entry.candidate_steps}
    return {
        num_steps: tuple(
            sorted((size for steps, size in pairs if steps == num_steps), reverse=True)
        )
        for num_steps in table.candidates()
    }


def _deciders(
    table: RangeTable, routing: Routing, max_running: int
) -> Iterator[tuple[int, BatchRange]]:
    """Yield every batch size with every range that can come to decide for it.

    A range that the routing keeps beyond its bounds must have been entered before, by a batch that
    is no larger than batches can be.
    """
    batches = range(1, max_running + 1)
    entered = {routing.route(table, batch_size, None).lower_bound for batch_size in batches}
    for batch_size in batches:
        for entry in routing.reachable(table, batch_size):
            if entry.lower_bound in entered:
                yield batch_size, entry


def _gap(size: int) -> int:
    if size < 8:
        return size
    if size < 64:
        return 4 if size < 16 else 8
    power: int = 1 << (size.bit_length() - 1)
    return power // 4
