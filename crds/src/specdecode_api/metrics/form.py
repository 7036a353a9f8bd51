"""The definition of a metric: name, type, help text and labels."""

from dataclasses import dataclass
from enum import StrEnum

from specdecode_api.names import METRIC_PREFIX


class MetricType(StrEnum):
    """Prometheus type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric family that engines export.

    `short` is its name without prefix, and without the `_total` suffix of a counter's samples.
    """

    short: str
    type: MetricType
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, without +Inf

    @property
    def family(self) -> str:
        return METRIC_PREFIX + self.short

    @property
    def sample(self) -> str:
        """Name of its samples in queries; for a histogram, of its buckets."""
        ends = {MetricType.COUNTER: "_total", MetricType.GAUGE: "", MetricType.HISTOGRAM: "_bucket"}
        return self.family + ends[self.type]


def counter(short: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(short, MetricType.COUNTER, text, labels)


def gauge(short: str, text: str, *labels: str) -> MetricSpec:
    return MetricSpec(short, MetricType.GAUGE, text, labels)


def histogram(short: str, text: str, bounds: tuple[float, ...], *labels: str) -> MetricSpec:
    return MetricSpec(short, MetricType.HISTOGRAM, text, labels, bounds)
