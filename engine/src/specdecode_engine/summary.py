"""What rounds and the core amount to, in plain numbers."""

from collections.abc import Mapping

from specdecode_engine.counters import Counters, DecodeTotals
from specdecode_engine.depth.decision import RangeState
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.graph_plan.report import GraphReport
from specdecode_engine.metrics import CoreSnapshot, RangeSnapshot
from specdecode_engine.metrics.snapshot import (
    DepthSnapshot,
    PositionSnapshot,
    StratumSnapshot,
    TableSnapshot,
)
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.step import Emission
from specdecode_engine.tally import TableTally, Tally


def totals_of(emissions: list[Emission], seconds: float) -> DecodeTotals:
    """Add up one decode round."""
    return DecodeTotals(
        rounds=1,
        request_rounds=len(emissions),
        drafted_tokens=sum(emission.drafted for emission in emissions),
        accepted_tokens=sum(emission.accepted for emission in emissions),
        emitted_tokens=sum(len(emission.token_ids) for emission in emissions),
        seconds=seconds,
    )


def summarise(
    scheduler: Scheduler,
    counters: Counters,
    tally: Tally,
    shapes: Mapping[int, DraftShape],
    graphs: GraphReport,
) -> CoreSnapshot:
    """Put state and totals together.

    Before the first decode round, its depth is the one that the smallest batches start with.
    """
    states, latest, decode = scheduler.depth.states(), counters.latest, counters.decode
    num_steps = latest.num_steps if latest else states[0].num_steps
    return CoreSnapshot(
        running_requests=len(scheduler.running),
        waiting_requests=len(scheduler.waiting),
        kv_pages_total=scheduler.pages.total,
        kv_pages_free=scheduler.available_pages,
        num_steps=num_steps,
        num_draft_tokens=shapes[num_steps].num_tokens,
        places=scheduler.limits.max_running,
        recent_accept_length=counters.recent.accept_length,
        active_range=latest.slot if latest else states[0].slot,
        reason=str(latest.reason) if latest else "",
        rounds_total=decode.rounds,
        request_rounds_total=decode.request_rounds,
        drafted_tokens_total=decode.drafted_tokens,
        accepted_tokens_total=decode.accepted_tokens,
        emitted_tokens_total=decode.emitted_tokens,
        prompt_tokens_total=counters.prompt_tokens,
        decode_seconds_total=decode.seconds,
        prefill_seconds_total=counters.prefill_seconds,
        retracted_total=scheduler.retracted_total,
        prefix_cache_pages=scheduler.cache.pages,
        prefix_cache_queried_tokens_total=scheduler.cache.queried_tokens,
        prefix_cache_hit_tokens_total=scheduler.cache.hit_tokens,
        prefix_cache_evicted_pages_total=scheduler.cache.evicted_pages,
        ranges=tuple(_range(state, counters) for state in states),
        tables=tuple(_table(name, table) for name, table in tally.tables.items()),
        mixed_requests_total=tally.mixed_requests,
        unsorted_requests_total=tally.unsorted_requests,
        depths=tuple(
            DepthSnapshot(*at, depth.rounds, depth.request_rounds, depth.busy_seconds)
            for at, depth in counters.depths.items()
        ),
        positions=tuple(
            PositionSnapshot(*at, position.reached, position.accepted)
            for at, position in counters.positions.items()
        ),
        graphs=graphs,
    )


def _range(state: RangeState, counters: Counters) -> RangeSnapshot:
    """Put what a range's policy knows beside what it has decided so far."""
    totals = counters.ranges.get(state.slot, DecodeTotals())
    switches = counters.switches.items()
    return RangeSnapshot(
        state=state,
        rounds_total=totals.rounds,
        request_rounds_total=totals.request_rounds,
        drafted_tokens_total=totals.drafted_tokens,
        accepted_tokens_total=totals.accepted_tokens,
        emitted_tokens_total=totals.emitted_tokens,
        decode_seconds_total=totals.seconds,
        switches_total={str(why): count for (slot, why), count in switches if slot == state.slot},
    )


def _table(name: str, table: TableTally) -> TableSnapshot:
    strata = table.strata.items()
    shown = tuple(StratumSnapshot(labels, tuple(sums)) for labels, sums in strata)
    return TableSnapshot(name, shown, table.retracted)
