"""The core's snapshot as Prometheus metrics."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specdecode_api.names import METRIC_PREFIX
from specdecode_engine.metrics.graphs import collect_graphs
from specdecode_engine.metrics.ranges import collect_ranges
from specdecode_engine.metrics.snapshot import CoreSnapshot

COUNTERS = {
    "rounds": ("rounds_total", "Decode rounds run."),
    "request_rounds": ("request_rounds_total", "Decode rounds, counted once per request in them."),
    "drafted_tokens": ("drafted_tokens_total", "Tokens proposed by the draft."),
    "accepted_tokens": ("accepted_tokens_total", "Proposed tokens that the target kept."),
    "emitted_tokens": ("emitted_tokens_total", "Tokens that decode rounds added to answers."),
    "prompt_tokens": ("prompt_tokens_total", "Prompt tokens computed."),
    "decode_seconds": ("decode_seconds_total", "Seconds spent in decode rounds."),
    "prefill_seconds": ("prefill_seconds_total", "Seconds spent computing prompts."),
    "prefix_cache_queried_tokens": (
        "prefix_cache_queried_tokens_total",
        "Tokens of admitted requests; one that was retracted is admitted and counted again.",
    ),
    "prefix_cache_hit_tokens": (
        "prefix_cache_hit_tokens_total",
        "Tokens of admitted requests whose key-value pages were cached.",
    ),
    "prefix_cache_evicted_pages": (
        "prefix_cache_evicted_pages_total",
        "Cached pages that were given up for memory.",
    ),
    "retracted_requests": ("retracted_total", "Requests sent back to the queue for memory."),
}
GAUGES = {
    "running_requests": ("running_requests", "Requests that take part in steps."),
    "waiting_requests": ("waiting_requests", "Requests that wait for a place or for memory."),
    "prefix_cache_pages": ("prefix_cache_pages", "Pages that the prefix cache keeps."),
    "num_steps": ("num_steps", "Draft depth of the latest decode round."),
    "num_draft_tokens": ("num_draft_tokens", "Nodes that it verified, root included."),
    "active_range": ("active_range", "Lower bound of the batch sizes whose slot decided it."),
    "load": (
        "load",
        "Requests that run and wait, by places, corrected by the accept length of late.",
    ),
    "accept_length": ("accept_length", "Tokens per request and decode round, since the start."),
}


class SnapshotCollector(Collector):
    """Turns the latest snapshot into metrics whenever somebody scrapes."""

    def __init__(self, read: Callable[[], CoreSnapshot]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the core."""
        snapshot = self._read()
        for name, (field, text) in COUNTERS.items():
            yield CounterMetricFamily(METRIC_PREFIX + name, text, value=getattr(snapshot, field))
        for name, (field, text) in GAUGES.items():
            yield GaugeMetricFamily(METRIC_PREFIX + name, text, value=getattr(snapshot, field))
        pages = GaugeMetricFamily(
            METRIC_PREFIX + "kv_pages", "Pages of the key-value cache by state.", labels=["state"]
        )
        pages.add_metric(["free"], snapshot.kv_pages_free)
        pages.add_metric(["used"], snapshot.kv_pages_total - snapshot.kv_pages_free)
        yield pages
        yield from collect_ranges(snapshot.ranges)
        yield from collect_graphs(snapshot.graphs)
