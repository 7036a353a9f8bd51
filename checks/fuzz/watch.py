"""Streams that run all the time, and a probe of /health: their texts, gaps and latency."""

import asyncio
import threading
import time
from dataclasses import dataclass, field
from functools import partial

from checks.fuzz.stalls import MIN_STALL_SECONDS, Wait, longest
from checks.fuzz.streams import STREAMS, read_stream

HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
PROBE_SECONDS = 0.05
BEAT_SECONDS = 0.02
RETRY_SECONDS = 0.1
RETRYABLE = (429, 503)
IDLE_SECONDS = 0.005


@dataclass(slots=True)
class PhaseTimes:
    """What a phase measured; of the waits, those that are long enough to be reported."""

    gap_s: float = 0.0
    health_s: float = 0.0
    own_delay_s: float = 0.0
    """How late the watcher's own event loop was; it is part of the other two."""
    waits: list[Wait] = field(default_factory=list)
    machine_waits: list[Wait] = field(default_factory=list)
    """Delays of an idle thread in this process: of the machine and its other load."""

    @property
    def machine_s(self) -> float:
        """The longest delay of the idle thread, 0 if none was long enough to be reported."""
        return max((wait.seconds for wait in self.machine_waits), default=0.0)

    def longest_waits(self) -> list[Wait]:
        """Return the longest waits for /health and for a stream, of any moment only one."""
        return longest(self.waits)


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
        threading.Thread(target=self._idle, name="idle", daemon=True).start()
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
            report_gap = partial(self._report_gap, f"stream {number}")
            result = await read_stream(number, self.port, report_gap)
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

    def _report_gap(self, name: str, start_s: float, end_s: float) -> None:
        self.times.gap_s = max(self.times.gap_s, end_s - start_s)
        self._note(Wait(name, start_s, end_s))

    def _note(self, wait: Wait) -> None:
        if wait.seconds >= MIN_STALL_SECONDS:
            self.times.waits.append(wait)

    def _idle(self) -> None:
        """Measure how late a thread that does nothing else is woken."""
        while not self.is_over:
            due_s = time.monotonic() + IDLE_SECONDS
            time.sleep(IDLE_SECONDS)
            wait = Wait("an idle thread", due_s, time.monotonic())
            if wait.seconds >= MIN_STALL_SECONDS:
                self.times.machine_waits.append(wait)

    async def _probe(self) -> None:
        while not self.is_over:
            started_s = time.monotonic()
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(
                    b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
                )
                await reader.read()
                writer.close()
            except OSError:
                return  # the engine has ended
            wait = Wait("/health", started_s, time.monotonic())
            self.times.health_s = max(self.times.health_s, wait.seconds)
            self._note(wait)
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
