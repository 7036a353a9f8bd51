"""Which (depth, batch size) pairs a table can reach: exactly those are worth a graph.

The depth at start is nothing special: it is reached where the table says so and nowhere else.
"""

from collections.abc import Iterator

from specdecode_engine.depth.ranges import BatchRange, DepthTable
from specdecode_engine.depth.routing import Routing
from specdecode_engine.graph_plan.sizes import padded_size


def reachable(
    table: DepthTable, routing: Routing, sizes: tuple[int, ...], max_running: int
) -> dict[int, tuple[int, ...]]:
    """Say which batch sizes each depth can meet.

    Args:
        sizes: captured batch sizes, ascending; a batch is padded to the next of them.
        max_running: the largest batch.

    Returns:
        For every depth of the table, ascending: captured sizes, largest first; none for a depth
        that no batch can reach, or only batches beyond the largest size.
    """
    pairs = set()
    for batch_size, entry in _deciders(table, routing, max_running):
        padded = padded_size(sizes, batch_size)
        if padded is not None:
            pairs |= {(steps, padded) for steps in entry.candidate_steps}
    return {
        depth: tuple(sorted((size for steps, size in pairs if steps == depth), reverse=True))
        for depth in table.candidates()
    }


def _deciders(
    table: DepthTable, routing: Routing, max_running: int
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
