"""Latencies of one request, observed as its outputs arrive."""

from specdecode_engine.stats.prometheus import EngineMetrics


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
            metrics.first_token_s.labels(table).observe(now_s - self._started_s)
        else:
            inter_token_s = metrics.inter_token_s.labels(table)
            for _ in range(tokens):
                inter_token_s.observe((now_s - self._latest_s) / tokens)
        self._latest_s = now_s

    def observe_end(self, finish_reason: str, now_s: float, table: str) -> None:
        """Observe how and when the request ended."""
        metrics = self._metrics
        table = metrics.tables.use(table)
        metrics.requests.labels(finish_reason=finish_reason, table=table).inc()
        metrics.request_s.labels(table).observe(now_s - self._started_s)
