"""All that is worth capturing: pairs of depth and batch size with their passes."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_engine.depth.ranges import DepthTable
from specdecode_engine.depth.routing import Routing
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.graph_plan.passes import PassShape, passes_of
from specdecode_engine.graph_plan.reach import reachable
from specdecode_engine.graph_plan.sizes import padded_size


@dataclass(frozen=True, slots=True, order=True)
class Pair:
    """Rounds of one depth on batches that are padded to one size."""

    num_steps: int
    batch_size: int

    def __str__(self) -> str:
        return f"depth {self.num_steps} at batch size {self.batch_size}"


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """Reachable pairs with the passes that each needs; pairs may share passes."""

    sizes: tuple[int, ...]  # ascending
    pairs: Mapping[Pair, tuple[PassShape, ...]]

    def pair_of(self, num_steps: int, batch_size: int) -> Pair | None:
        """Return the pair that a round falls into, reachable or not; None beyond all sizes."""
        padded = padded_size(self.sizes, batch_size)
        return None if padded is None else Pair(num_steps, padded)

    def passes(self) -> tuple[PassShape, ...]:
        """List every pass once, the one with most rows first."""
        every = {one for passes in self.pairs.values() for one in passes}
        return tuple(sorted(every, key=lambda one: (one.total_rows, one), reverse=True))


NOTHING = GraphPlan((), {})


def plan_graphs(
    table: DepthTable,
    routing: Routing,
    shapes: Mapping[int, DraftShape],
    sizes: tuple[int, ...],
    max_running: int,
    window: int | None,
) -> GraphPlan:
    """Work out the pairs that the table can reach.

    Args:
        shapes: how a round of so many steps drafts, for every depth of the table.
        window: see `passes_of`.
    """
    reach = reachable(table, routing, sizes, max_running)
    pairs = {
        Pair(num_steps, size): passes_of(shapes[num_steps], size, window)
        for num_steps, reached in reach.items()
        for size in reached
    }
    return GraphPlan(sizes, pairs)
