"""Makes the policy named in the boot file, with its table."""

from collections.abc import Callable, Iterable, Mapping

from specdecode_api.boot import SpeculationBoot, TableEntry
from specdecode_api.metrics import table_hash
from specdecode_api.speculation import Algorithm, Policy
from specdecode_engine.adaptive.cost import CostModel, CostPoint, CostShape, chain_tokens
from specdecode_engine.adaptive.ema import EmaPolicy
from specdecode_engine.adaptive.goodput import GoodputPolicy
from specdecode_engine.adaptive.policy import AdaptivePolicy, StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable


def make_policy(
    speculation: SpeculationBoot,
    table: RangeTable | None,
    captured: tuple[int, ...] = (),
    costs: Iterable[CostPoint] = (),
    *,
    drafts_blocks: bool = False,
    drafted: Callable[[int], int] = chain_tokens,
) -> AdaptivePolicy:
    """Return the policy that chooses the draft steps of each engine step.

    Args:
        table: see `range_table`.
        captured: batch sizes that steps are padded to.
        costs: measured step times, for policy goodput.
        drafts_blocks: see `CostShape`.
        drafted: see `GoodputPolicy`.
    """
    num_steps = speculation.usual_steps
    if table is None or speculation.algorithm is Algorithm.NONE:
        return StaticPolicy(num_steps, table_without_entries(speculation))
    match speculation.policy:
        case Policy.STATIC:
            return StaticPolicy(num_steps, table)
        case Policy.EMA:
            return EmaPolicy(table, num_steps, captured)
        case Policy.GOODPUT:
            points = tuple(costs)
            whole = [point for point in points if point.verify_tokens is None]
            cost = CostModel(whole, CostShape(drafts_blocks=drafts_blocks))
            table = table.within(speculation.max_step_s)
            return GoodputPolicy(table, cost, num_steps, points=points, drafted=drafted)


def table_without_entries(speculation: SpeculationBoot) -> RangeTable:
    """Return the table of an engine that has none: always the draft steps at start."""
    name = table_hash(speculation.policy, speculation.entries)
    return RangeTable([BatchRange(1, (speculation.usual_steps,))], name)


def range_table(entries: Mapping[str, TableEntry], policy: Policy) -> RangeTable | None:
    """Return the table as policies read it; None if it is empty."""
    ranges = []
    for bound, entry in entries.items():
        candidates = {"candidate_steps": tuple(sorted(entry.candidate_steps))}
        ranges.append(BatchRange(int(bound), **(entry.model_dump() | candidates)))
    return RangeTable(ranges, table_hash(policy, entries)) if ranges else None
