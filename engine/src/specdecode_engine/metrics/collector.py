"""The core's snapshot as Prometheus metrics."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from specdecode_api import series
from specdecode_api.series import Series, core
from specdecode_engine.metrics.depths import collect_depths
from specdecode_engine.metrics.families import filled, single
from specdecode_engine.metrics.graphs import collect_graphs
from specdecode_engine.metrics.portions import collect_portions
from specdecode_engine.metrics.ranges import collect_ranges
from specdecode_engine.metrics.snapshot import CoreSnapshot

_APART: Final = (core.KV_PAGES, core.RETRACTED_REQUESTS)


class SnapshotCollector(Collector):
    """Turns the latest snapshot into metrics whenever somebody scrapes."""

    def __init__(self, read: Callable[[], CoreSnapshot]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the core."""
        snapshot = self._read()
        for each in series.CORE:
            if each not in _APART:
                yield single(each, getattr(snapshot, _field(each)))
        used = snapshot.kv_pages_total - snapshot.kv_pages_free
        yield filled(core.KV_PAGES, [(("free",), snapshot.kv_pages_free), (("used",), used)])
        retracted = [((table.table_hash,), table.retracted_total) for table in snapshot.tables]
        yield filled(core.RETRACTED_REQUESTS, retracted)
        yield from collect_ranges(snapshot.ranges)
        yield from collect_depths(snapshot)
        yield from collect_portions(snapshot)
        yield from collect_graphs(snapshot.graphs)


def _field(each: Series) -> str:
    """A snapshot's field is called as the series is asked for."""
    return each.sample.removeprefix(series.PREFIX)
