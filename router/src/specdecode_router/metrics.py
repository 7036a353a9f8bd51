"""The registry of one router."""

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from specdecode_api.metrics import MetricSpec, router
from specdecode_router.engines import EnginePool
from specdecode_router.routing.prefix_table import PrefixTable


class RouterMetrics:
    """Counts what the router does; state of engines and table is read when metrics are."""

    def __init__(self, pool: EnginePool, table: PrefixTable) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_PoolCollector(pool, table))
        self.held_now = Gauge(
            router.ROUTER_HELD_REQUESTS.family,
            router.ROUTER_HELD_REQUESTS.help,
            registry=self.registry,
        )
        self.attempts = self._counter(router.ROUTER_ATTEMPTS)
        self.choices = self._counter(router.ROUTER_CHOICES)
        self.resumed = self._counter(router.ROUTER_RESUMED)
        self.restarted = self._counter(router.ROUTER_RESTARTED)
        self.unresumable = self._counter(router.ROUTER_UNRESUMABLE)
        self.held = self._counter(router.ROUTER_HELD)
        self.responses = self._counter(router.ROUTER_RESPONSES)
        self.prompt_blocks = self._counter(router.ROUTER_PROMPT_BLOCKS)
        first = router.ROUTER_FIRST_EVENT_SECONDS
        self.first_event_s = Histogram(
            first.family, first.help, buckets=first.bounds, registry=self.registry
        )

    def _counter(self, each: MetricSpec) -> Counter:
        return Counter(each.family, each.help, each.labels, registry=self.registry)

    def count_response(self, status: int) -> None:
        """Count a response."""
        self.responses.labels(str(status)).inc()

    def forget(self, pods: frozenset[str]) -> None:
        """End the series of engines other than `pods`."""
        samples = (sample for family in self.attempts.collect() for sample in family.samples)
        for pod in {sample.labels[router.ENGINE_LABEL] for sample in samples} - pods:
            self.attempts.remove_by_labels({router.ENGINE_LABEL: pod})


class _PoolCollector(Collector):
    def __init__(self, pool: EnginePool, table: PrefixTable) -> None:
        self._pool = pool
        self._table = table

    def collect(self) -> Iterator[Metric]:
        engines = list(self._pool.engines.values())
        counts = {"ready": 0, "not_ready": 0, "open": 0}
        for engine in engines:
            is_open = engine.reason is None and engine.breaker.is_open
            counts["open" if is_open else "not_ready" if engine.reason else "ready"] += 1
        yield _gauge(router.ROUTER_ENGINES, {(state,): count for state, count in counts.items()})
        running = {(engine.pod,): engine.requests for engine in engines}
        yield _gauge(router.ROUTER_RUNNING_REQUESTS, running)
        yield _gauge(router.ROUTER_PREFIX_BLOCKS, {(): len(self._table)})


def _gauge(each: MetricSpec, values: Mapping[Any, int]) -> Metric:
    family = GaugeMetricFamily(each.family, each.help, labels=each.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
