"""Health of the operator: whether it makes progress, not only whether its process runs."""

from dataclasses import dataclass

STALE_RESYNCS = 3
STUCK_S = 600.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """The inputs of the health check."""

    resync_age_s: float
    resync_interval_s: float
    oldest_wait_s: float


def problems(vitals: Vitals) -> tuple[str, ...]:
    """Reasons to restart the operator; empty if it is healthy."""
    found = []
    if vitals.resync_age_s > STALE_RESYNCS * vitals.resync_interval_s:
        found.append(
            f"no resync succeeded for {vitals.resync_age_s:.0f} s, "
            f"one is due every {vitals.resync_interval_s:.0f} s"
        )
    if vitals.oldest_wait_s > STUCK_S:
        found.append(f"a resource has waited {vitals.oldest_wait_s:.0f} s for a worker")
    return tuple(found)
