"""What the engine tells Prometheus: the core's totals and the server's latencies."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specdecode_api.names import METRIC_PREFIX

FIRST_TOKEN_BUCKETS_S = (
    (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
)  # fmt: skip
TOKEN_BUCKETS_S = (
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 5)
)  # fmt: skip
REQUEST_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)


@dataclass(frozen=True, slots=True)
class CoreSnapshot:
    """The core's state and totals at the end of a step.

    `kv_pages_free` counts pages that only the prefix cache holds as free: they can be had.
    `request_rounds_total` counts verify rounds once per request in them, so that
    `emitted_tokens_total / request_rounds_total` is the accept length.
    """

    running_requests: int = 0
    waiting_requests: int = 0
    kv_pages_total: int = 0
    kv_pages_free: int = 0
    num_steps: int = 0
    rounds_total: int = 0
    request_rounds_total: int = 0
    drafted_tokens_total: int = 0
    accepted_tokens_total: int = 0
    emitted_tokens_total: int = 0
    prompt_tokens_total: int = 0
    decode_seconds_total: float = 0.0
    prefill_seconds_total: float = 0.0
    retracted_total: int = 0
    prefix_cache_pages: int = 0
    prefix_cache_queried_tokens_total: int = 0
    prefix_cache_hit_tokens_total: int = 0
    prefix_cache_evicted_pages_total: int = 0

    @property
    def accept_length(self) -> float:
        """Tokens that one verify round adds to one request; 0 before the first round."""
        rounds = self.request_rounds_total
        return self.emitted_tokens_total / rounds if rounds else 0.0


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
        self._asked = self._counter("request_prompt_tokens", "Prompt tokens of answered calls.")
        self._answered = self._counter("request_completion_tokens", "Tokens of answered calls.")

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(METRIC_PREFIX + name, text, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str, labels: list[str] | None = None) -> Counter:
        return Counter(METRIC_PREFIX + name, text, labels or [], registry=self.registry)

    def count_error(self, status: int) -> None:
        """Count a call that ended in an HTTP error."""
        self._errors.labels(status=str(status)).inc()

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
