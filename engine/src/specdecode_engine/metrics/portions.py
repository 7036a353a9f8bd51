"""Metrics of what requests did under each table: nine sums a stratum."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from specdecode_api import series
from specdecode_engine.metrics.families import filled, single
from specdecode_engine.metrics.snapshot import CoreSnapshot


def collect_portions(snapshot: CoreSnapshot) -> Iterator[Metric]:
    """Yield the sums, and how many requests are in none of them."""
    rows = [
        ((table.table_hash, *stratum.labels), stratum.sums)
        for table in snapshot.tables
        for stratum in table.strata
    ]
    for place, each in enumerate(series.PORTIONS):
        yield filled(each, ((labels, sums[place]) for labels, sums in rows))
    yield single(series.MIXED_REQUESTS, snapshot.mixed_requests_total)
    yield single(series.UNSORTED_REQUESTS, snapshot.unsorted_requests_total)
