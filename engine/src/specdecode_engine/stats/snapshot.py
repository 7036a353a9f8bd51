"""A copy of everything that the core counts, which any thread may read."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, replace

from specdecode_api import metrics
from specdecode_api.metrics import MetricSpec, MetricType, core, speculation
from specdecode_engine.adaptive.draft_health import DraftReport
from specdecode_engine.adaptive.policy import RangeState, Reason
from specdecode_engine.graphs.plan import GraphReport
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.stats.counters import Counters, DecodeTotals, load
from specdecode_engine.stats.kernel_compiles import AFTER_READY
from specdecode_engine.stats.per_table import PerTableStats

Labels = tuple[str, ...]
Values = Mapping[Labels, float]

# In the order of the fields of `DecodeTotals`, `StepTotals` and `PositionStats`.
_DECODE = (
    core.DECODE_STEPS, core.REQUEST_STEPS, core.DRAFTED_TOKENS, core.VERIFIED_TOKENS,
    core.ACCEPTED_TOKENS, core.EMITTED_TOKENS, core.DECODE_SECONDS,
)  # fmt: skip
_RANGES = (
    speculation.RANGE_STEPS, speculation.RANGE_REQUEST_STEPS, speculation.RANGE_DRAFTED_TOKENS,
    speculation.RANGE_VERIFIED_TOKENS, speculation.RANGE_ACCEPTED_TOKENS,
    speculation.RANGE_EMITTED_TOKENS, speculation.RANGE_DECODE_SECONDS,
)  # fmt: skip
_STEPS = (
    speculation.BUCKET_STEPS, speculation.BUCKET_REQUEST_STEPS, speculation.BUCKET_BUSY_SECONDS,
)  # fmt: skip
_POSITIONS = (speculation.POSITION_REACHED, speculation.POSITION_ACCEPTED)


@dataclass(frozen=True, slots=True)
class CoreSnapshot:
    """Values of the core's series after a step.

    `values` holds a number per tuple of label values; what is absent is 0. That of a histogram is
    how often a value was observed, by the value as its one label. `reason` is why the
    latest decode step ran with its draft steps, empty before the first.
    """

    values: Mapping[MetricSpec, Values] = field(default_factory=dict)
    ranges: tuple[RangeState, ...] = ()
    reason: str = ""
    graphs: GraphReport = field(default_factory=lambda: GraphReport("off"))
    draft: DraftReport | None = None  # None: no draft is tested

    def __getitem__(self, key: MetricSpec | tuple[MetricSpec, str]) -> float:
        """Return the value of a series, summed over its labels, or the one at a label's value."""
        if isinstance(key, MetricSpec):
            return sum(self.values.get(key, {}).values())
        each, label = key
        return self.values.get(each, {}).get((label,), 0)

    def document(self) -> dict[str, object]:
        """Describe it as JSON: values by the name of their series without prefix, and the rest."""
        shown: dict[str, object] = {
            each.sample.removeprefix(metrics.PREFIX): (
                {",".join(labels): value for labels, value in self.values.get(each, {}).items()}
                if each.labels or each.type is MetricType.HISTOGRAM
                else self[each]
            )
            for each in (*metrics.CORE, *metrics.BUCKETS)
        }
        return shown | {
            "reason": self.reason,
            "ranges": [asdict(state) for state in self.ranges],
            "graphs": asdict(self.graphs),
            "draft": None if self.draft is None else self.draft.document(),
        }


def take_snapshot(
    scheduler: Scheduler,
    counters: Counters,
    per_table: PerTableStats,
    num_draft_tokens: Mapping[int, int],
    graphs: GraphReport,
) -> CoreSnapshot:
    """Copy state and totals.

    Before the first decode step, its draft steps are those that the smallest batches start with.

    Args:
        num_draft_tokens: nodes that a step verifies, root included, by its draft steps.
    """
    states, latest = _states(scheduler), counters.latest
    health = scheduler.drafting.health
    draft = None if health is None else health.report()
    num_steps = latest.num_steps if latest else states[0].num_steps
    running, waiting = len(scheduler.running), len(scheduler.waiting) + len(scheduler.suspended)
    cache, pages = scheduler.cache, scheduler.pages
    used = pages.total - scheduler.available_pages
    accept_length = counters.recent.accept_length
    single: dict[MetricSpec, float] = {
        core.PROMPT_TOKENS: counters.prompt_tokens,
        core.DRAFTED_REQUEST_STEPS: counters.drafted_request_steps,
        core.PREFILL_SECONDS: counters.prefill_seconds,
        core.OBJECTIVE_UNREACHABLE_STEPS: counters.unreachable_steps,
        core.CACHE_PAGES: cache.pages,
        core.CACHE_QUERIED_TOKENS: cache.queried_tokens,
        core.CACHE_HIT_TOKENS: cache.hit_tokens,
        core.CACHE_EVICTED_PAGES: cache.evicted_pages,
        core.RUNNING_REQUESTS: running,
        core.WAITING_REQUESTS: waiting,
        core.NUM_STEPS: num_steps,
        core.NUM_DRAFT_TOKENS: num_draft_tokens[num_steps],
        core.ACTIVE_RANGE: latest.range_start if latest else states[0].range_start,
        core.ACCEPT_LENGTH: counters.decode.accept_length,
        core.KERNEL_COMPILES: AFTER_READY.total,
        core.DRAFT_UNFIT: float(draft is not None and draft.is_unfit),
        core.DRAFT_PROBES: 0 if draft is None else draft.probes,
        core.KV_CACHE_USAGE: used / pages.total,
        core.LOAD: load(running + waiting, scheduler.limits.max_running, accept_length),
    }
    values: dict[MetricSpec, Values] = {
        **{each: {(): value} for each, value in single.items()},
        core.OUT_OF_MEMORY_STEPS: {(k,): n for k, n in counters.out_of_memory.items()},
        core.SOURCE_DRAFTED_TOKENS: {(k,): one.drafted for k, one in counters.sources.items()},
        core.SOURCE_ACCEPTED_TOKENS: {(k,): one.accepted for k, one in counters.sources.items()},
        core.VERIFY_ROWS: {(str(n),): steps for n, steps in counters.verify_rows.items()},
        core.KV_PAGES: {("free",): pages.total - used, ("used",): used},
        core.CACHE_CONFIG_INFO: {(str(pages.page_size), str(pages.total)): 1},
        core.KV_WINDOW_PAGES: _window_pages(scheduler),
        **_totals(_DECODE, [((), counters.decode)]),
        **_range_values(states, counters),
        **_totals(_STEPS, _named(counters.buckets)),
        **_totals(_POSITIONS, _named(counters.positions)),
        **per_table.values(),
        **graph_values(graphs),
    }
    return CoreSnapshot(values, states, str(latest.reason) if latest else "", graphs, draft)


def _states(scheduler: Scheduler) -> tuple[RangeState, ...]:
    """Return the state of every range; an unfit draft overrules the policy without a fallback."""
    states = scheduler.drafting.policy.states()
    if not scheduler.drafting.is_overruled:
        return states
    return tuple(replace(state, num_steps=0, reason=Reason.UNFIT) for state in states)


def _window_pages(scheduler: Scheduler) -> Values:
    """Return the window pages by state; nothing for a model whose layers have none."""
    if scheduler.windows is None:
        return {}
    return {(state,): count for state, count in scheduler.windows.counts._asdict().items()}


def graph_values(report: GraphReport) -> dict[MetricSpec, Values]:
    sets = [((str(each.num_steps),), each) for each in report.sets]
    return {
        core.GRAPH_BATCH_SIZES: {at: len(each.batch_sizes) for at, each in sets},
        core.GRAPH_BYTES: {at: each.num_bytes for at, each in sets},
        core.GRAPH_CAPTURE_SECONDS: {at: each.seconds for at, each in sets},
        core.GRAPH_SHARED_BYTES: {(): report.shared_bytes},
        core.GRAPH_CAPTURE_FAILED: {(): float(bool(report.failure))},
        core.GRAPH_STEPS: {(): report.graph_steps},
        core.EAGER_STEPS: {(reason,): steps for reason, steps in report.eager_steps.items()},
    }


def range_state_values(states: Iterable[RangeState]) -> dict[MetricSpec, Values]:
    """Return what the policy holds for each range of batch sizes."""
    named = [(str(state.range_start), state) for state in states]
    return {
        speculation.RANGE_NUM_STEPS: {(at,): state.num_steps for at, state in named},
        speculation.RANGE_ACCEPTED_EMA: {(at,): s.ema for at, s in named if s.ema is not None},
        speculation.RANGE_SURVIVAL: {
            (at, str(position)): chance
            for at, state in named
            for position, chance in enumerate(state.survival, start=1)
        },
        speculation.RANGE_EXPECTED: {
            (at, str(num_steps)): rate
            for at, state in named
            for num_steps, rate in state.tokens_per_second.items()
        },
    }


def _range_values(states: tuple[RangeState, ...], counters: Counters) -> dict[MetricSpec, Values]:
    """Return what the table's present ranges decided, and what the policy holds for each."""
    totals = [
        ((str(s.range_start),), counters.ranges.get(s.range_start, DecodeTotals())) for s in states
    ]
    present = {state.range_start for state in states}
    return {
        **_totals(_RANGES, totals),
        speculation.RANGE_WASTED_TOKENS: {at: each.wasted_tokens for at, each in totals},
        speculation.NUM_STEPS_SWITCHES: {
            (str(start), str(reason)): count
            for (start, reason), count in counters.switches.items()
            if start in present
        },
        **range_state_values(states),
    }


def _named(totals: Mapping[tuple[int, int], object]) -> Iterator[tuple[Labels, object]]:
    return (((str(one), str(other)), each) for (one, other), each in totals.items())


def _totals(
    group: tuple[MetricSpec, ...], rows: Iterable[tuple[Labels, object]]
) -> dict[MetricSpec, Values]:
    """Return the fields of each row's totals as values of the group's series, in this order."""
    columns: list[dict[Labels, float]] = [{} for _ in group]
    for labels, totals in rows:
        for column, value in zip(columns, astuple(totals), strict=True):  # type: ignore[call-overload]
            column[labels] = value
    return dict(zip(group, columns, strict=True))
