"""`python -m checks.soak [--minutes 10] [--seed N]`: mixed requests; the last line is JSON.

The exit status is 1 if resident memory grows by more than 1 MB per 1,000 requests after warm-up,
if pages, threads, descriptors or requests are left at the end, or if a request was answered with
5xx.
"""

import argparse
import asyncio
import json
import secrets
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from checks.fuzz.served import ServedEngine, serve_example
from checks.soak.measures import (
    MAX_SLOPE_MB,
    MemoryPoint,
    Resources,
    read_resources,
    resident_bytes,
    slope_mb_per_1000,
)
from checks.soak.requests import SoakLoad, send_burst

WARM_UP_SHARE = 0.3
POINTS = 60
DISTINCT = 400
SETTLE_SECONDS = 60.0
POLL_SECONDS = 0.5
SHOWN = 10


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What was sent and measured."""

    load: SoakLoad
    points: tuple[MemoryPoint, ...]
    start: Resources
    end: Resources

    @property
    def slope_mb(self) -> float:
        return slope_mb_per_1000(self.points)

    def left(self) -> tuple[str, ...]:
        return self.end.growth_since(self.start)

    def has_passed(self) -> bool:
        is_clean = not self.left() and not self.load.defects and not self.load.refused
        return is_clean and self.slope_mb <= MAX_SLOPE_MB

    def summary(self) -> dict[str, object]:
        """The figures of the last line."""
        return {
            "requests": self.load.sent,
            "rss_mb_per_1000_requests": self.slope_mb,
            "rss_mb": [round(p.resident_bytes / 1e6, 1) for p in (self.points[0], self.points[-1])],
            "start": asdict(self.start),
            "end": asdict(self.end),
            "statuses": dict(sorted(self.load.statuses.items())),
            "defects": len(self.load.defects),
        }


async def soak(engine: ServedEngine, seed: int, seconds: float, distinct: int) -> SoakResult:
    """Send the mix once as warm-up, then measure while it is sent again and again."""
    pid, port = engine.server.pid, engine.management_port
    await _send_for(SoakLoad(engine.port, seed, distinct), seconds * WARM_UP_SHARE / 2)
    await send_burst(engine.port, seed)
    start = await _settled(pid, port)
    load = SoakLoad(engine.port, seed, distinct)
    running = asyncio.create_task(load.run())
    begins_s = time.monotonic() + seconds * WARM_UP_SHARE / 2
    ends_s = begins_s + seconds * (1 - WARM_UP_SHARE)
    points = []
    while not load.is_over and time.monotonic() < ends_s:
        await asyncio.sleep((ends_s - begins_s) / POINTS)
        if time.monotonic() > begins_s and not engine.has_ended():
            points.append(MemoryPoint(load.sent, resident_bytes(pid)))
    load.is_over = True
    await running
    return SoakResult(load, tuple(points), start, await _settled(pid, port, start))


async def _send_for(load: SoakLoad, seconds: float) -> None:
    running = asyncio.create_task(load.run())
    await asyncio.sleep(seconds)
    load.is_over = True
    await running


async def _settled(pid: int, port: int, start: Resources | None = None) -> Resources:
    """Return what is held when nothing runs any more, and no more than at the start."""
    ends_s = time.monotonic() + SETTLE_SECONDS
    while True:
        found = await asyncio.to_thread(read_resources, pid, port)
        is_busy = found.running or found.waiting or (start and found.growth_since(start))
        if not is_busy or time.monotonic() > ends_s:
            return found
        await asyncio.sleep(POLL_SECONDS)


def main() -> int:
    """Soak with the given or a fresh seed."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, help="a fresh one if absent; it is printed")
    parser.add_argument("--distinct", type=int, default=DISTINCT, help="requests until they repeat")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"soak: seed {seed}", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder, serve_example(Path(folder)) as engine:
        result = asyncio.run(soak(engine, seed, 60 * options.minutes, options.distinct))
    for line in (*result.load.defects[:SHOWN], *result.left()):
        print(line, file=sys.stderr)
    for point in result.points:
        print(f"{point.requests:8} requests  {point.resident_bytes / 1e6:9.1f} MB")
    print(json.dumps({"seed": seed, **result.summary()}))
    return 0 if result.has_passed() else 1


if __name__ == "__main__":
    sys.exit(main())
