"""All that is worth capturing: pairs of depth and batch size with their passes."""

from collections.abc import Mapping
from dataclasses import dataclass

from specdecode_engine.depth.decision import DepthPolicy
from specdecode_engine.depth.ranges import BatchRange, DepthTable
from specdecode_engine.depth.static import StaticDepth
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


@dataclass(frozen=True, slots=True)
class GraphSpace:
    """What stays as it is while an engine runs, whatever table it is given.

    `window` is None where nothing that runs passes drafts; see `passes_of`.
    """

    shapes: Mapping[int, DraftShape]  # by depth
    sizes: tuple[int, ...]  # ascending
    max_running: int
    window: int | None

    def plan(self, depth: DepthPolicy) -> GraphPlan:
        """Work out the pairs that a policy can reach in its table."""
        reach = reachable(_choosable(depth), depth.routing, self.sizes, self.max_running)
        pairs = {
            Pair(num_steps, size): passes_of(self.shapes[num_steps], size, self.window)
            for num_steps, reached in reach.items()
            for size in reached
        }
        return GraphPlan(self.sizes, pairs)


def _choosable(depth: DepthPolicy) -> DepthTable:
    """Narrow the table to depths that the policy can choose: one a range where it is static."""
    if not isinstance(depth, StaticDepth):
        return depth.table
    return DepthTable(BatchRange(state.slot, (state.num_steps,)) for state in depth.states())
