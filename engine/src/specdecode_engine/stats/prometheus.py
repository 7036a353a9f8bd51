"""The registry of one engine: the core's snapshot and what the server measures around it."""

import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from specdecode_api import metrics
from specdecode_api.metrics import TABLE, MetricSpec, MetricType, requests
from specdecode_engine.stats.snapshot import CoreSnapshot


class LatencyHistogram(Collector):
    """A histogram of seconds whose only label is the table.

    It is observed with every step of every request, on the event loop alone: without the locks of
    `prometheus_client.Histogram`, several equal observations at once.
    """

    def __init__(self, spec: MetricSpec) -> None:
        self._spec = spec
        self._counts: dict[str, list[int]] = {}  # by table: of each bucket, +Inf included
        self._sums: dict[str, float] = {}

    def observe(self, table: str, seconds: float, count: int = 1) -> None:
        """Observe the same time `count` times."""
        counts = self._counts.get(table)
        if counts is None:
            counts = self._counts[table] = [0] * (len(self._spec.bounds) + 1)
            self._sums[table] = 0.0
        counts[bisect_left(self._spec.bounds, seconds)] += count
        self._sums[table] += seconds * count

    def remove_by_labels(self, labels: Mapping[str, str]) -> None:
        """End the series of a table."""
        self._counts.pop(labels[TABLE], None)
        self._sums.pop(labels[TABLE], None)

    def clear(self) -> None:
        """End all series."""
        self._counts.clear()
        self._sums.clear()

    def collect(self) -> Iterator[Metric]:
        spec = self._spec
        bounds = [*map(floatToGoString, spec.bounds), "+Inf"]
        family = HistogramMetricFamily(spec.family, spec.help, labels=spec.labels)
        for table, counts in self._counts.items():
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            family.add_metric([table], buckets, self._sums[table])
        yield family


CORE = (
    *metrics.CORE, *metrics.GRAPHS, *metrics.RANGES, *metrics.BUCKETS, *metrics.REQUEST_SUMS,
    metrics.MIXED_REQUESTS, metrics.UNSORTED_REQUESTS,
)  # fmt: skip
"""The series whose values are in a snapshot."""


class EngineMetrics:
    """One registry: what the engine is, the core's snapshot, and what the server measures.

    Args:
        read: returns the core's latest snapshot.
        describe: returns the labels of `metrics.INFO`; errors count under its table.
        stored: returns the number of stored responses, and their bytes.
    """

    def __init__(
        self,
        read: Callable[[], CoreSnapshot],
        describe: Callable[[], Mapping[str, str]] = dict,
        stored: Callable[[], tuple[int, int]] = lambda: (0, 0),
    ) -> None:
        self.registry = CollectorRegistry()
        self._engine = _EngineCollector(read, describe)
        self.registry.register(self._engine)
        self._describe = describe
        self.first_token_s = self._histogram(requests.FIRST_TOKEN_SECONDS)
        self.inter_token_s = self._histogram(requests.INTER_TOKEN_SECONDS)
        self.request_s = self._histogram(requests.REQUEST_SECONDS)
        self.requests = self._counter(requests.REQUESTS)
        self._errors = self._counter(requests.HTTP_ERRORS)
        self._reloads = self._counter(requests.TABLE_RELOADS)
        self._drafts = self._counter(requests.DRAFT_EXCHANGES)
        self._failures = self._counter(requests.ENGINE_FAILURES)
        self._resumed = self._counter(requests.RESUMED_REQUESTS)
        self._ignored_fields = self._counter(requests.IGNORED_FIELDS)
        self._prompt_tokens = self._counter(requests.REQUEST_PROMPT_TOKENS)
        self._completion_tokens = self._counter(requests.REQUEST_COMPLETION_TOKENS)
        self._gauge(requests.STORED_RESPONSES, lambda: stored()[0])
        self._gauge(requests.STORED_RESPONSE_BYTES, lambda: stored()[1])
        latencies = (self.first_token_s, self.inter_token_s, self.request_s)
        self._by_table = (*latencies, self.requests, self._errors)
        self.tables = TableLabels(self._by_table)

    def restart(self) -> None:
        """Begin at 0, as the core does when the engine starts again; the start time has changed.

        What is counted by result or reason stays.
        """
        self._engine.started_s = time.time()
        for metric in self._by_table:
            metric.clear()

    def _histogram(self, each: MetricSpec) -> LatencyHistogram:
        histogram = LatencyHistogram(each)
        self.registry.register(histogram)
        return histogram

    def _counter(self, each: MetricSpec) -> Counter:
        return Counter(each.family, each.help, each.labels, registry=self.registry)

    def _gauge(self, each: MetricSpec, read: Callable[[], float]) -> None:
        Gauge(each.family, each.help, registry=self.registry).set_function(read)

    def count_error(self, status: int) -> None:
        """Count an HTTP request that ended in an error, under the table in force."""
        self._errors.labels(status=str(status), table=self._table()).inc()

    def count_table(self, result: str) -> None:
        """Count what became of a table; `Tables` lists the results."""
        self._reloads.labels(result=result).inc()

    def count_draft(self, result: str) -> None:
        """Count what became of a draft that was to replace the running one."""
        self._drafts.labels(result=result).inc()

    def count_failure(self, reason: str) -> None:
        """Count a failure after which the process is restarted."""
        self._failures.labels(reason=reason).inc()

    def count_resumed(self, number: int) -> None:
        """Count HTTP requests that continue in another engine process."""
        self._resumed.inc(number)

    def count_ignored_fields(self, field: str, number: int) -> None:
        """Count unknown fields of requests that were accepted."""
        self._ignored_fields.labels(field=field).inc(number)

    def count_call(self, prompt_tokens: int, completion_tokens: int, unfinished: int = 0) -> None:
        """Count the tokens of one HTTP request, and its choices that were cut short."""
        self._prompt_tokens.inc(prompt_tokens)
        self._completion_tokens.inc(completion_tokens)
        if unfinished:
            self.requests.labels(finish_reason="abort", table=self._table()).inc(unfinished)

    def _table(self) -> str:
        return self.tables.use(self._describe().get(metrics.HASHES[1], ""))


class RequestLatency:
    """Observes time to first token, inter-token latency and request latency.

    Args:
        started_s: when the HTTP request arrived.
    """

    def __init__(self, metrics: EngineMetrics, started_s: float) -> None:
        self._metrics = metrics
        self._started_s = started_s
        self._latest_s: float | None = None

    def observe_tokens(self, tokens: int, now_s: float, table: str) -> None:
        """Observe `tokens` more tokens, of a step under `table`."""
        if not tokens:
            return
        metrics = self._metrics
        table = metrics.tables.use(table)
        if self._latest_s is None:
            metrics.first_token_s.observe(table, now_s - self._started_s)
        else:
            metrics.inter_token_s.observe(table, (now_s - self._latest_s) / tokens, tokens)
        self._latest_s = now_s

    def observe_end(self, finish_reason: str, now_s: float, table: str) -> None:
        metrics = self._metrics
        table = metrics.tables.use(table)
        metrics.requests.labels(finish_reason=finish_reason, table=table).inc()
        metrics.request_s.observe(table, now_s - self._started_s)


class TableLabels:
    """Ends the series of the least recently used table when a further one appears.

    A counter's value that moved to another series would look like traffic there; so the series
    ends, and a table that comes back begins at 0, which readers take for a restart.

    Args:
        metrics: those with the label `table`.
    """

    def __init__(self, metrics: Sequence[MetricWrapperBase | LatencyHistogram]) -> None:
        self._metrics = metrics
        self._latest: OrderedDict[str, None] = OrderedDict()

    def use(self, table: str) -> str:
        """Return `table`, about to be used as a label."""
        if next(reversed(self._latest), None) == table:
            return table
        self._latest[table] = None
        self._latest.move_to_end(table)
        if len(self._latest) > metrics.MAX_TABLES:
            oldest, _ = self._latest.popitem(last=False)
            for metric in self._metrics:
                metric.remove_by_labels({TABLE: oldest})
        return table


class _EngineCollector(Collector):
    """Exports what the engine is, when the process started, and the latest snapshot."""

    def __init__(
        self, read: Callable[[], CoreSnapshot], describe: Callable[[], Mapping[str, str]]
    ) -> None:
        self._read = read
        self._describe = describe
        self.started_s = time.time()

    def collect(self) -> Iterator[Metric]:
        facts, snapshot = self._describe(), self._read()
        yield _family(metrics.INFO, [(tuple(facts.get(n, "") for n in metrics.INFO.labels), 1.0)])
        yield _family(metrics.PROCESS_START, [((), self.started_s)])
        for each in CORE:
            has_labels = each.labels or each.type is MetricType.HISTOGRAM
            values = snapshot.values.get(each, {} if has_labels else {(): 0.0})
            yield _family(each, values.items())


def _family(each: MetricSpec, values: Iterable[tuple[tuple[str, ...], float]]) -> Metric:
    if each.type is MetricType.HISTOGRAM:
        return _histogram(each, {int(at): count for (at,), count in values})
    kind = CounterMetricFamily if each.type is MetricType.COUNTER else GaugeMetricFamily
    family = kind(each.family, each.help, labels=each.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _histogram(each: MetricSpec, counts: Mapping[int, float]) -> Metric:
    """Add up how often each value was observed in the buckets of a metric without labels."""
    below = [
        (str(float(bound)), sum(count for at, count in counts.items() if at <= bound))
        for bound in each.bounds
    ]
    below.append(("+Inf", sum(counts.values())))
    total = sum(at * count for at, count in counts.items())
    return HistogramMetricFamily(each.family, each.help, buckets=below, sum_value=total)
