"""Makes the policy that the boot file names, over the table that it is to choose in."""

from collections.abc import Iterable, Mapping

from specdecode_api.boot import SpeculationBoot, TableEntry
from specdecode_api.series import table_hash
from specdecode_api.speculation import Algorithm, Policy
from specdecode_engine.depth.cost import CostModel, CostPoint
from specdecode_engine.depth.decision import DepthPolicy
from specdecode_engine.depth.ema import EmaDepth
from specdecode_engine.depth.goodput import GoodputDepth
from specdecode_engine.depth.ranges import BatchRange, DepthTable
from specdecode_engine.depth.static import StaticDepth


def make_policy(
    speculation: SpeculationBoot,
    table: DepthTable | None,
    captured: tuple[int, ...] = (),
    costs: Iterable[CostPoint] = (),
) -> DepthPolicy:
    """Return what decides on the depth of each round.

    Args:
        table: see `depth_table`.
        captured: batch sizes that rounds are padded to.
        costs: what rounds were measured to take, for policy goodput.
    """
    num_steps = speculation.num_steps
    if table is None or speculation.algorithm is Algorithm.NONE:
        only = BatchRange(1, (num_steps,))
        name = table_hash(speculation.policy, speculation.entries)
        return StaticDepth(num_steps, DepthTable([only], name))
    match speculation.policy:
        case Policy.STATIC:
            return StaticDepth(num_steps, table)
        case Policy.EMA:
            return EmaDepth(table, num_steps, captured)
        case Policy.GOODPUT:
            return GoodputDepth(table, CostModel(costs), num_steps)


def depth_table(entries: Mapping[str, TableEntry], policy: Policy) -> DepthTable | None:
    """Return the table as policies read it; None where there is none."""
    ranges = [
        BatchRange(int(bound), **(entry.model_dump() | {"candidate_steps": _ascending(entry)}))
        for bound, entry in entries.items()
    ]
    return DepthTable(ranges, table_hash(policy, entries)) if ranges else None


def _ascending(entry: TableEntry) -> tuple[int, ...]:
    return tuple(sorted(entry.candidate_steps))
