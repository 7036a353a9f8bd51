"""Metrics per range of batch sizes; the label `batch_size` is a range's lower bound."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from specdecode_api.names import METRIC_PREFIX
from specdecode_engine.metrics.snapshot import RangeSnapshot

_COUNTERS = {
    "range_rounds": ("rounds_total", "Decode rounds run."),
    "range_request_rounds": ("request_rounds_total", "Decode rounds, once per request in them."),
    "range_drafted_tokens": ("drafted_tokens_total", "Tokens proposed by the draft."),
    "range_accepted_tokens": ("accepted_tokens_total", "Proposed tokens that the target kept."),
    "range_wasted_tokens": ("wasted_tokens_total", "Proposed tokens that it did not keep."),
    "range_emitted_tokens": ("emitted_tokens_total", "Tokens added to answers."),
    "range_decode_seconds": ("decode_seconds_total", "Seconds spent in decode rounds."),
}


def collect_ranges(ranges: tuple[RangeSnapshot, ...]) -> Iterator[Metric]:
    """Yield what each range did, what its policy holds, and why it changed its depth."""
    for name, (field, text) in _COUNTERS.items():
        counter = CounterMetricFamily(_full(name), f"{text} Per range.", labels=["batch_size"])
        for entry in ranges:
            counter.add_metric([str(entry.state.slot)], getattr(entry, field))
        yield counter
    yield _switches(ranges)
    yield from _states(ranges)


def _switches(ranges: tuple[RangeSnapshot, ...]) -> Metric:
    text = "Changes of depth from one decode round to the next, by the range that decided."
    switches = CounterMetricFamily(_full("depth_switches"), text, labels=["batch_size", "reason"])
    for entry in ranges:
        for reason, count in entry.switches_total.items():
            switches.add_metric([str(entry.state.slot), reason], count)
    return switches


def _states(ranges: tuple[RangeSnapshot, ...]) -> Iterator[Metric]:
    steps = _gauge("range_num_steps", "Draft depth that the range would use now.")
    ema = _gauge("range_accepted_ema", "Moving average of accepted draft tokens (policy ema).")
    survival = _gauge(
        "range_survival", "Chance that a drafted position is accepted (policy goodput).", "position"
    )
    expected = _gauge(
        "range_expected_tokens_per_second", "What a depth would bring (policy goodput).", "steps"
    )
    for entry in ranges:
        state, bound = entry.state, str(entry.state.slot)
        steps.add_metric([bound], state.num_steps)
        if state.ema is not None:
            ema.add_metric([bound], state.ema)
        for position, chance in enumerate(state.survival, start=1):
            survival.add_metric([bound, str(position)], chance)
        for depth, rate in state.tokens_per_second.items():
            expected.add_metric([bound, str(depth)], rate)
    yield from (steps, ema, survival, expected)


def _gauge(name: str, text: str, label: str | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(_full(name), text, labels=["batch_size", *filter(None, [label])])


def _full(name: str) -> str:
    return METRIC_PREFIX + name
