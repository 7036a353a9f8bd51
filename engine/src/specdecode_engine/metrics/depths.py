"""Metrics of what each depth cost and each drafted position brought, by band of batch sizes."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from specdecode_api.series import depths
from specdecode_engine.metrics.families import filled
from specdecode_engine.metrics.snapshot import CoreSnapshot

_ROUNDS = {
    "rounds_total": depths.DEPTH_ROUNDS,
    "request_rounds_total": depths.DEPTH_REQUEST_ROUNDS,
    "busy_seconds_total": depths.DEPTH_BUSY_SECONDS,
}
_POSITIONS = {
    "reached_total": depths.POSITION_REACHED,
    "accepted_total": depths.POSITION_ACCEPTED,
}


def collect_depths(snapshot: CoreSnapshot) -> Iterator[Metric]:
    """Yield rounds and seconds by depth, trials and successes by position."""
    for field, each in _ROUNDS.items():
        yield filled(
            each,
            (
                ((str(depth.band), str(depth.num_steps)), getattr(depth, field))
                for depth in snapshot.depths
            ),
        )
    for field, each in _POSITIONS.items():
        yield filled(
            each,
            (
                ((str(place.band), str(place.position)), getattr(place, field))
                for place in snapshot.positions
            ),
        )
