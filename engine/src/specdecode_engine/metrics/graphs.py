"""Metrics of captured passes: what is there per depth, and how many rounds ran without."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from specdecode_api.names import METRIC_PREFIX
from specdecode_engine.graph_plan.report import GraphReport


def collect_graphs(report: GraphReport) -> Iterator[Metric]:
    """Yield a gauge per fact of a depth, and the rounds with and without captured passes."""
    pairs = _gauge("graph_batch_sizes", "Batch sizes captured for a depth.", ["steps"])
    num_bytes = _gauge("graph_bytes", "Memory of a depth's captured passes.", ["steps"])
    seconds = _gauge("graph_capture_seconds", "Time that capturing a depth took.", ["steps"])
    for tier in report.tiers:
        steps = [str(tier.num_steps)]
        pairs.add_metric(steps, len(tier.batch_sizes))
        num_bytes.add_metric(steps, tier.num_bytes)
        seconds.add_metric(steps, tier.seconds)
    shared = _gauge("graph_shared_bytes", "Memory of inputs and outputs that all passes share.", [])
    shared.add_metric([], report.shared_bytes)
    yield from (pairs, num_bytes, seconds, shared)
    yield from _rounds(report)


def _rounds(report: GraphReport) -> Iterator[Metric]:
    captured = CounterMetricFamily(
        METRIC_PREFIX + "captured_rounds",
        "Decode rounds that ran on captured passes.",
        value=report.captured_rounds,
    )
    eager = CounterMetricFamily(
        METRIC_PREFIX + "eager_rounds",
        "Decode rounds that ran without captured passes, by reason.",
        labels=["reason"],
    )
    for reason, rounds in report.eager_rounds.items():
        eager.add_metric([reason], rounds)
    yield from (captured, eager)


def _gauge(name: str, text: str, labels: list[str]) -> GaugeMetricFamily:
    return GaugeMetricFamily(METRIC_PREFIX + name, text, labels=labels)
