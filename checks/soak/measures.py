"""What a soak reads of the engine's process and metrics, and the slope of its memory."""

import re
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from specdecode_api.metrics import core

READ_SECONDS = 30.0
MAX_SLOPE_MB = 1.0
"""Of resident memory, per 1,000 requests."""
MB = 1e6
MIN_POINTS = 3


@dataclass(frozen=True, slots=True)
class Resources:
    """What the engine holds: threads, descriptors, used pages of the KV cache, and requests."""

    threads: int
    descriptors: int
    used_pages: int
    running: int
    waiting: int

    def growth_since(self, start: "Resources") -> tuple[str, ...]:
        """Name what is more than at the start, with both values."""
        names = ("threads", "descriptors", "used_pages", "running", "waiting")
        return tuple(
            f"{name}: {getattr(start, name)} at the start, {getattr(self, name)} at the end"
            for name in names
            if getattr(self, name) > getattr(start, name)
        )


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """Resident memory of the engine's process after a number of requests."""

    requests: int
    resident_bytes: int


def read_resources(pid: int, management_port: int) -> Resources:
    """Read the process and its metrics."""
    url = f"http://127.0.0.1:{management_port}/metrics"
    with urllib.request.urlopen(url, timeout=READ_SECONDS) as response:
        shown = response.read().decode()
    return Resources(
        threads=_count(pid, "task"),
        descriptors=_count(pid, "fd"),
        used_pages=read_metric(shown, core.KV_PAGES.sample, 'state="used"'),
        running=read_metric(shown, core.RUNNING_REQUESTS.sample),
        waiting=read_metric(shown, core.WAITING_REQUESTS.sample),
    )


def read_metric(shown: str, name: str, label: str = "") -> int:
    """Return the value of a series in Prometheus' text format.

    Raises:
        ValueError: the series is missing.
    """
    found = re.search(
        rf"^{re.escape(name)}(?:\{{[^}}]*{re.escape(label)}[^}}]*\}})? (\S+)$", shown, re.M
    )
    if found is None:
        raise ValueError(f"the engine's metrics have no {name} with {label or 'any label'}")
    return int(float(found[1]))


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, without its children."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.M)
    assert found is not None
    return int(found[1]) * 1024


def slope_mb_per_1000(points: Sequence[MemoryPoint]) -> float:
    """Return the slope of resident memory in MB per 1,000 requests (Theil and Sen).

    It is the median of the slopes of all pairs, which a single jump does not move.

    Raises:
        ValueError: fewer than three points.
    """
    if len(points) < MIN_POINTS:
        raise ValueError(f"{len(points)} points of memory; at least {MIN_POINTS} are needed")
    slopes = sorted(
        (b.resident_bytes - a.resident_bytes) / MB / (b.requests - a.requests) * 1000
        for index, a in enumerate(points)
        for b in points[index + 1 :]
        if b.requests > a.requests
    )
    return round(slopes[len(slopes) // 2], 3)


def _count(pid: int, folder: str) -> int:
    return len(list(Path(f"/proc/{pid}/{folder}").iterdir()))
