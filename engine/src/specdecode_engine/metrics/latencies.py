"""What the server measures around the core: latencies, errors, tokens of calls."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Histogram

from specdecode_api.names import METRIC_PREFIX
from specdecode_engine.metrics.collector import SnapshotCollector
from specdecode_engine.metrics.snapshot import CoreSnapshot

FIRST_TOKEN_BUCKETS_S = (
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
)  # fmt: skip
TOKEN_BUCKETS_S = (
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 5)
)  # fmt: skip
REQUEST_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)


class EngineMetrics:
    """One registry: the core's snapshot and what the server measures around it."""

    def __init__(self, read: Callable[[], CoreSnapshot]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(SnapshotCollector(read))
        self._first_token_s = self._histogram(
            "time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            FIRST_TOKEN_BUCKETS_S,
        )
        self._token_s = self._histogram(
            "inter_token_seconds",
            "Between tokens; the time of a round is shared by the tokens it added.",
            TOKEN_BUCKETS_S,
        )
        self._request_s = self._histogram(
            "request_seconds", "From the request's arrival to its last token.", REQUEST_BUCKETS_S
        )
        self._requests = self._counter(
            "requests",
            "Requests by finish reason; abort if the client left, or on a failure.",
            ["finish_reason"],
        )
        self._errors = self._counter("http_errors", "Calls answered with an error.", ["status"])
        self._tables = self._counter(
            "table_reloads", "Speculation tables offered while running.", ["result"]
        )
        self._asked = self._counter("request_prompt_tokens", "Prompt tokens of answered calls.")
        self._answered = self._counter("request_completion_tokens", "Tokens of answered calls.")

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(METRIC_PREFIX + name, text, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, labels: list[str] | None = None) -> Counter:
        return Counter(METRIC_PREFIX + name, text, labels or [], registry=self.registry)

    def count_error(self, status: int) -> None:
        """Count a call that ended in an HTTP error."""
        self._errors.labels(status=str(status)).inc()

    def count_table(self, result: str) -> None:
        """Count a table that was offered: "applied" or "refused"."""
        self._tables.labels(result=result).inc()

    def count_call(self, prompt_tokens: int, completion_tokens: int) -> None:
        """Count the tokens of one call, complete or cut short."""
        self._asked.inc(prompt_tokens)
        self._answered.inc(completion_tokens)

    def count_cut_short(self, requests: int) -> None:
        """Count requests that ended before their answer was complete."""
        self._requests.labels(finish_reason="abort").inc(requests)

    def stopwatch(self, started_s: float) -> "Stopwatch":
        """Measure one sequence of a call that arrived at `started_s`."""
        return Stopwatch(
            self._first_token_s, self._token_s, self._request_s, self._requests, started_s
        )


class Stopwatch:
    """The latencies of one sequence; told about each output as it arrives."""

    def __init__(
        self,
        first_token_s: Histogram,
        token_s: Histogram,
        request_s: Histogram,
        requests: Counter,
        started_s: float,
    ) -> None:
        self._first_token_s = first_token_s
        self._token_s = token_s
        self._request_s = request_s
        self._requests = requests
        self._started_s = started_s
        self._latest_s: float | None = None

    def tick(self, tokens: int, now_s: float) -> None:
        """Note that `tokens` more tokens arrived."""
        if not tokens:
            return
        if self._latest_s is None:
            self._first_token_s.observe(now_s - self._started_s)
        else:
            for _ in range(tokens):
                self._token_s.observe((now_s - self._latest_s) / tokens)
        self._latest_s = now_s

    def stop(self, finish_reason: str, now_s: float) -> None:
        """Note how and when the sequence ended."""
        self._requests.labels(finish_reason=finish_reason).inc()
        self._request_s.observe(now_s - self._started_s)
