"""What the engine is, as Prometheus metrics: the labels of one series, and when it started."""

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from specdecode_api import series
from specdecode_engine.metrics.families import labelled, single


class AboutCollector(Collector):
    """Tells the start of the process and what `describe` says of it now.

    Args:
        describe: values by label; one that is missing is empty.
    """

    def __init__(self, describe: Callable[[], Mapping[str, str]]) -> None:
        self._describe = describe
        self._started_s = time.time()

    def collect(self) -> Iterator[Metric]:
        """Yield both."""
        told = dict.fromkeys(series.INFO.labels, "") | dict(self._describe())
        yield labelled(series.INFO, told, 1.0)
        yield single(series.PROCESS_START, self._started_s)
