"""What the server measures around the core: latencies, errors, tokens of calls."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram

from specdecode_api import series
from specdecode_api.series import Series, requests
from specdecode_engine.metrics.about import AboutCollector
from specdecode_engine.metrics.by_table import TableLabels
from specdecode_engine.metrics.collector import SnapshotCollector
from specdecode_engine.metrics.snapshot import CoreSnapshot


def _nothing() -> Mapping[str, str]:
    return {}


class EngineMetrics:
    """One registry: what the engine is, the core's snapshot, and what the server measures.

    Args:
        read: the core's latest snapshot.
        describe: labels of `series.INFO`; the table in force, with which errors are counted.
    """

    def __init__(
        self,
        read: Callable[[], CoreSnapshot],
        describe: Callable[[], Mapping[str, str]] = _nothing,
    ) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(AboutCollector(describe))
        self.registry.register(SnapshotCollector(read))
        self._describe = describe
        self.first_token_s = self._histogram(requests.FIRST_TOKEN_SECONDS)
        self.inter_token_s = self._histogram(requests.INTER_TOKEN_SECONDS)
        self.request_s = self._histogram(requests.REQUEST_SECONDS)
        self.requests = self._counter(requests.REQUESTS)
        self._errors = self._counter(requests.HTTP_ERRORS)
        self._reloads = self._counter(requests.TABLE_RELOADS)
        self._asked = self._counter(requests.REQUEST_PROMPT_TOKENS)
        self._answered = self._counter(requests.REQUEST_COMPLETION_TOKENS)
        self.tables = TableLabels()
        latencies = (self.first_token_s, self.inter_token_s, self.request_s)
        self.tables.watch(*latencies, self.requests, self._errors)

    def _histogram(self, each: Series) -> Histogram:
        return Histogram(
            each.family, each.help, each.labels, buckets=each.bounds_s, registry=self.registry
        )

    def _counter(self, each: Series) -> Counter:
        return Counter(each.family, each.help, each.labels, registry=self.registry)

    def count_error(self, status: int) -> None:
        """Count a call that ended in an error, under the table in force."""
        self._errors.labels(status=str(status), table=self._table()).inc()

    def count_table(self, result: str) -> None:
        """Count a table that was offered: "applied" or "refused"."""
        self._reloads.labels(result=result).inc()

    def count_call(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count the tokens of one call, complete or cut short."""
        self._asked.inc(prompt_tokens)
        self._answered.inc(completion_tokens)

    def count_cut_short(self, number: int) -> None:
        """Count requests that ended before their answer was complete."""
        self.requests.labels(finish_reason="abort", table=self._table()).inc(number)

    def stopwatch(self, started_s: float) -> "Stopwatch":
        """Measure one sequence of a call that arrived at `started_s`."""
        return Stopwatch(self, started_s)

    def _table(self) -> str:
        return self.tables.use(self._describe().get(series.HASHES[1], ""))


class Stopwatch:
    """The latencies of one sequence; told about each output as it arrives."""

    def __init__(self, metrics: EngineMetrics, started_s: float) -> None:
        self._metrics = metrics
        self._started_s = started_s
        self._latest_s: float | None = None

    def tick(self, tokens: int, now_s: float, table: str) -> None:
        """Note that `tokens` more tokens arrived, of a round under `table`."""
        if not tokens:
            return
        metrics = self._metrics
        table = metrics.tables.use(table)
        if self._latest_s is None:
            metrics.first_token_s.labels(table).observe(now_s - self._started_s)
        else:
            inter_token_s = metrics.inter_token_s.labels(table)
            for _ in range(tokens):
                inter_token_s.observe((now_s - self._latest_s) / tokens)
        self._latest_s = now_s

    def stop(self, finish_reason: str, now_s: float, table: str) -> None:
        """Note how and when the sequence ended."""
        metrics = self._metrics
        table = metrics.tables.use(table)
        metrics.requests.labels(finish_reason=finish_reason, table=table).inc()
        metrics.request_s.labels(table).observe(now_s - self._started_s)
