"""What this pod is up to: loading, ready, draining, stopping, failed; and how many calls run."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from specdecode_engine.serve import errors


class Lifecycle:
    """The pod's state. Owned by the event loop, except `progress`, which the loader writes.

    Draining is not ready but serving, for the seconds until every router knows. Stopping refuses
    new calls and lets the running ones finish.
    """

    def __init__(self) -> None:
        self.progress = "starting"
        self.failure: str | None = None
        self.is_loaded = False
        self.is_draining = False
        self.is_stopping = False
        self.is_hurried = False
        self.calls = 0
        self._changed = asyncio.Event()

    def load(self) -> None:
        """Note that the engine can be used."""
        self.is_loaded = True
        self._tell()

    def fail(self, reason: str) -> None:
        """Note that the engine will never work (again)."""
        self.failure = reason
        self._tell()

    def drain(self) -> None:
        """Be not ready from now on, and serve on."""
        self.is_draining = True
        self._tell()

    def stop(self) -> None:
        """Refuse new calls; when asked twice, end the running ones too."""
        self.is_hurried = self.is_stopping
        self.is_draining = self.is_stopping = True
        self._tell()

    def not_ready_reason(self) -> str | None:
        """Say why no traffic should come, or None when it may."""
        if self.failure is not None:
            return f"failed: {self.failure}"
        if self.is_stopping:
            return "stopping"
        if self.is_draining:
            return "draining"
        return None if self.is_loaded else f"loading: {self.progress}"

    def check_admission(self) -> None:
        """Raise unless calls are taken now."""
        if self.failure is not None:
            raise errors.unavailable("the engine failed; it restarts", "engine_failed", 10)
        if self.is_stopping:
            raise errors.unavailable("this pod is stopping; try again", "draining", 1)
        if not self.is_loaded:
            raise errors.unavailable(f"the model loads: {self.progress}", "loading", 5)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call while it runs; raises unless calls are taken now."""
        self.check_admission()
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            self._tell()

    async def ending(self) -> None:
        """Wait until the process should end: asked to, or failed."""
        while not self.is_stopping and self.failure is None:
            await self._change()

    async def idle(self) -> None:
        """Wait until nothing runs, or waiting is pointless: hurried, or failed."""
        while self.calls and not self.is_hurried and self.failure is None:
            await self._change()

    async def emptied(self) -> None:
        """Wait until nothing runs."""
        while self.calls:
            await self._change()

    async def _change(self) -> None:
        await self._changed.wait()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
