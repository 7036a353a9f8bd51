"""A queue of keys: each waits once, is worked on by one worker at a time, and comes back if needed.

Times are seconds of a monotonic clock that is given, like the source of randomness; everything but
`get` is synchronous, so that tests need neither.
"""

import asyncio
import contextlib
import heapq
import random
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")

FIRST_RETRY_S = 0.5
LAST_RETRY_S = 300.0


class Queue(Generic[K]):
    """Keys to work on. A worker takes one with `get`, and must call `done` with it afterwards."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._waiting: dict[K, float] = {}  # key to when it was added; in order of adding
        self._working: set[K] = set()
        self._dirty: set[K] = set()  # added again while being worked on
        self._later: list[tuple[float, int, K]] = []  # heap of (due, tie-break, key)
        self._due: dict[K, float] = {}  # the one due time per key that counts
        self._failures: dict[K, int] = {}
        self._ticket = 0
        self._wake = asyncio.Event()

    def add(self, key: K) -> None:
        """Have a key worked on as soon as possible; it waits once, however often it is added."""
        if key in self._working:
            self._dirty.add(key)
        elif key not in self._waiting:
            self._waiting[key] = self._clock()
            self._wake.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Have a key worked on after a delay; of several delays the earliest counts."""
        due = self._clock() + delay_s
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        self._ticket += 1
        heapq.heappush(self._later, (due, self._ticket, key))
        self._wake.set()

    def retry(self, key: K) -> float:
        """Have a key worked on after its back-off, which doubles with every failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        ceiling_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 16))
        delay_s = ceiling_s * self._rng.uniform(0.5, 1.0)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """Call off the failures of a key."""
        self._failures.pop(key, None)

    def take(self) -> K | None:
        """The next key, now marked as being worked on; None when nothing is due."""
        self._promote()
        if not self._waiting:
            return None
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Say that the work on a key has ended, well or badly."""
        self._working.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    async def get(self) -> K:
        """Wait for the next key."""
        while True:
            key = self.take()
            if key is not None:
                return key
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()

    def depth(self) -> int:
        """Keys that wait."""
        return len(self._waiting)

    def oldest_s(self) -> float:
        """How long the first of the waiting keys has waited."""
        since = list(self._waiting.values())  # copied: metrics are read by another thread
        return self._clock() - since[0] if since else 0.0

    def _promote(self) -> None:
        now = self._clock()
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key)

    def _pause_s(self) -> float | None:
        return max(0.0, self._later[0][0] - self._clock()) if self._later else None
