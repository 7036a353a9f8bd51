"""Streams that run all the time, and a probe of /health: their texts, gaps and latency."""

import asyncio
import time
from dataclasses import dataclass, field

from fuzz.streams import STREAMS, read_stream

PROBE_SECONDS = 0.05
BEAT_SECONDS = 0.02
RETRY_SECONDS = 0.1
RETRYABLE = (429, 503)


@dataclass(slots=True)
class PhaseTimes:
    """The largest values of a phase, in seconds."""

    gap_s: float = 0.0
    health_s: float = 0.0
    own_delay_s: float = 0.0
    """How late the watcher's own event loop was; it is part of the other two."""


@dataclass(slots=True)
class Watch:
    """Runs the streams until `stop`; every end of one is compared with its first.

    `disturbed` has a line for each stream with another text, or without its end.
    """

    port: int
    texts: dict[int, str] = field(default_factory=dict)
    disturbed: list[str] = field(default_factory=list)
    refused: int = 0
    ended: int = 0
    times: PhaseTimes = field(default_factory=PhaseTimes)
    is_over: bool = False

    def begin_phase(self) -> PhaseTimes:
        """Measure into a new record; return that of the phase before."""
        before, self.times = self.times, PhaseTimes()
        return before

    async def run(self) -> None:
        """Run streams, probe and heartbeat until `is_over`."""
        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(self._run_stream(number))
            group.create_task(self._probe())
            group.create_task(self._beat())

    async def wait_ended(self, count: int, seconds: float) -> None:
        """Wait until so many streams have ended, or time is up."""
        ends_s = time.monotonic() + seconds
        while self.ended < count and time.monotonic() < ends_s:
            await asyncio.sleep(PROBE_SECONDS)

    async def _run_stream(self, number: int) -> None:
        while not self.is_over:
            result = await read_stream(number, self.port, self._report_gap)
            if result.status in RETRYABLE:
                self.refused += 1
                await asyncio.sleep(RETRY_SECONDS)
                continue
            self.ended += 1
            if result.error:
                self.disturbed.append(f"stream {number}: {result.status} {result.error}")
                await asyncio.sleep(RETRY_SECONDS)
            elif result.text != (first := self.texts.setdefault(number, result.text)):
                at = _first_difference(first, result.text)
                self.disturbed.append(
                    f"stream {number} differs at character {at}: "
                    f"{first[at : at + 40]!r}, then {result.text[at : at + 40]!r}"
                )

    def _report_gap(self, seconds: float) -> None:
        self.times.gap_s = max(self.times.gap_s, seconds)

    async def _probe(self) -> None:
        while not self.is_over:
            started_s = time.monotonic()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                await reader.read()
                writer.close()
            except OSError:
                return  # the engine has ended
            self.times.health_s = max(self.times.health_s, time.monotonic() - started_s)
            await asyncio.sleep(PROBE_SECONDS)

    async def _beat(self) -> None:
        while not self.is_over:
            due_s = time.monotonic() + BEAT_SECONDS
            await asyncio.sleep(BEAT_SECONDS)
            late_s = time.monotonic() - due_s
            self.times.own_delay_s = max(self.times.own_delay_s, late_s)


def _first_difference(first: str, second: str) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))
