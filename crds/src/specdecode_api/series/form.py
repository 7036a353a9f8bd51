"""What a series is: its name, its kind, what it says, and by what its values are told apart."""

from dataclasses import dataclass
from enum import StrEnum

from specdecode_api.names import METRIC_PREFIX


class Kind(StrEnum):
    """How a series may be read: a rate of a counter, a level of a gauge, a quantile."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Series:
    """One family that engines export.

    `short` is its name without prefix and without the `_total` that a counter's samples end with.
    """

    short: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    bounds_s: tuple[float, ...] = ()  # upper bounds of a histogram's buckets, without +Inf

    @property
    def family(self) -> str:
        """Name as a family is registered."""
        return METRIC_PREFIX + self.short

    @property
    def sample(self) -> str:
        """Name as one asks for it; of a histogram, its buckets."""
        ends = {Kind.COUNTER: "_total", Kind.GAUGE: "", Kind.HISTOGRAM: "_bucket"}
        return self.family + ends[self.kind]


def counter(short: str, text: str, *labels: str) -> Series:
    """Define what only grows while a process lives."""
    return Series(short, Kind.COUNTER, text, labels)


def gauge(short: str, text: str, *labels: str) -> Series:
    """Define what goes up and down."""
    return Series(short, Kind.GAUGE, text, labels)


def histogram(short: str, text: str, bounds_s: tuple[float, ...], *labels: str) -> Series:
    """Define observations in seconds, by bucket."""
    return Series(short, Kind.HISTOGRAM, text, labels, bounds_s)
