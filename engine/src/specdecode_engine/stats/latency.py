"""How long the tokens of requests take, by table: histograms and their observation."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from specdecode_api.metrics import TABLE, MetricSpec


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
