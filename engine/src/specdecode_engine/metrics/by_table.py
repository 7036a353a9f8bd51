"""Metrics whose series go by table: those of the last few tables only."""

from collections import OrderedDict
from collections.abc import Sequence

from prometheus_client.metrics import MetricWrapperBase

from specdecode_api.series import MAX_TABLES, TABLE


class TableLabels:
    """Ends the series of a table that was not used for longest, when a new one comes.

    A counter's value that moved to another series would look like traffic there; so it ends, and
    a table that comes back begins at 0, which readers take for a restart.
    """

    def __init__(self) -> None:
        self._metrics: Sequence[MetricWrapperBase] = ()
        self._latest: OrderedDict[str, None] = OrderedDict()

    def watch(self, *metrics: MetricWrapperBase) -> None:
        """Keep these to the last tables."""
        self._metrics = metrics

    def use(self, table: str) -> str:
        """Return `table`, about to be written under."""
        if next(reversed(self._latest), None) == table:
            return table
        self._latest[table] = None
        self._latest.move_to_end(table)
        if len(self._latest) > MAX_TABLES:
            oldest, _ = self._latest.popitem(last=False)
            for metric in self._metrics:
                metric.remove_by_labels({TABLE: oldest})
        return table
