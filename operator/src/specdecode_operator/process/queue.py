"""A work queue of keys: a key waits once, and is processed by one worker at a time.

Clock (monotonic, seconds) and randomness are parameters, and everything but `get` is synchronous,
so that tests are deterministic.
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
    """Keys to process. A worker takes a key with `get`, and must call `done` afterwards."""

    def __init__(self, clock: Callable[[], float], rng: random.Random) -> None:
        self._clock = clock
        self._rng = rng
        self._waiting: dict[K, float] = {}  # key to when it was added; in order of adding
        self._working: set[K] = set()
        self._dirty: set[K] = set()  # added again while being processed
        self._later: list[tuple[float, int, K]] = []  # heap of (due, tie-break, key)
        self._due: dict[K, float] = {}  # the one due time per key that counts
        self._failures: dict[K, int] = {}
        self._ticket = 0
        self._wake = asyncio.Event()

    def add(self, key: K) -> None:
        """Queue a key; a key that is added repeatedly waits once."""
        if key in self._working:
            self._dirty.add(key)
        elif key not in self._waiting:
            self._waiting[key] = self._clock()
            self._wake.set()

    def add_after(self, key: K, delay_s: float) -> None:
        """Queue a key after a delay; the earliest of several delays applies."""
        due = self._clock() + delay_s
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        self._ticket += 1
        heapq.heappush(self._later, (due, self._ticket, key))
        self._wake.set()

    def retry(self, key: K) -> float:
        """Queue a key after its back-off, which doubles with every failure."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        ceiling_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures, 16))
        delay_s = ceiling_s * self._rng.uniform(0.5, 1.0)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """Reset the failures of a key."""
        self._failures.pop(key, None)

    def take(self) -> K | None:
        """Take the next key; None if nothing is due."""
        self._promote()
        if not self._waiting:
            return None
        key = next(iter(self._waiting))
        del self._waiting[key]
        self._working.add(key)
        return key

    def done(self, key: K) -> None:
        """Mark a key as processed, successfully or not."""
        self._working.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def clear(self) -> None:
        """Drop every key and all failures. No key may be worked on meanwhile."""
        assert not self._working, "done() must be called first"
        self._waiting.clear()
        self._later.clear()
        self._due.clear()
        self._failures.clear()

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
        """Number of waiting keys."""
        return len(self._waiting)

    def oldest_s(self) -> float:
        """Wait of the oldest waiting key."""
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
