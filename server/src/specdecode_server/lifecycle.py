"""The state of this pod: loading, ready, draining, stopping or failed; and its running requests."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from specdecode_server import errors


class ServerLifecycle:
    """The pod's state. Owned by the event loop, except `progress`, which the loader writes.

    A draining pod is not ready but serves, until every router has removed it. A stopping pod
    refuses new requests and finishes the running ones.
    """

    def __init__(self) -> None:
        self.progress = "starting"
        self.failure: str | None = None
        self.is_loaded = False
        self.is_draining = False
        self.is_stopping = False
        self.is_immediate = False
        self.running_requests = 0
        self._changed = asyncio.Event()

    def load(self) -> None:
        """Record that the engine can be used."""
        self.is_loaded = True
        self._notify()

    def restart(self) -> None:
        """Record that the engine cannot be used until it is loaded again."""
        self.progress = "the engine has failed and starts again"
        self.is_loaded = False
        self._notify()

    def fail(self, reason: str) -> None:
        """Record that the engine cannot be used any more."""
        self.failure = reason
        self._notify()

    def drain(self) -> None:
        """Report not ready from now on, and continue to serve."""
        self.is_draining = True
        self._notify()

    def undrain(self) -> bool:
        """Report ready again, unless the pod is stopping; return whether it was possible."""
        if self.is_stopping:
            return False
        self.is_draining = False
        self._notify()
        return True

    def stop(self) -> None:
        """Refuse new requests; on the second call, end the running ones too."""
        self.is_immediate = self.is_stopping
        self.is_draining = self.is_stopping = True
        self._notify()

    @property
    def has_ended(self) -> bool:
        """Whether the process should end: it was stopped, or the engine failed."""
        return self.is_stopping or self.failure is not None

    def not_ready_reason(self) -> str | None:
        """Return why no traffic should be routed here, or None when the pod is ready."""
        if self.failure is not None:
            return f"failed: {self.failure}"
        if self.is_stopping:
            return "stopping"
        if self.is_draining:
            return "draining"
        return None if self.is_loaded else f"loading: {self.progress}"

    def check_admission(self) -> None:
        """Raise unless requests are accepted now."""
        if self.failure is not None:
            raise errors.unavailable("the engine failed; it restarts", "engine_failed", 10)
        if self.is_stopping:
            raise errors.unavailable("this pod is stopping; try again", "draining", 1)
        if not self.is_loaded:
            raise errors.unavailable(f"the model is loading: {self.progress}", "loading", 5)

    @contextmanager
    def count_request(self) -> Iterator[None]:
        """Count a request while it runs; raises unless requests are accepted now."""
        self.check_admission()
        self.running_requests += 1
        try:
            yield
        finally:
            self.running_requests -= 1
            self._notify()

    async def wait_for_end(self) -> None:
        """Wait until `has_ended`."""
        while not self.has_ended:
            await self.wait_for_change()

    async def wait_until_idle(self) -> None:
        """Wait until no request runs, or an immediate stop or a failure ends the wait."""
        while self.running_requests and not self.is_immediate and self.failure is None:
            await self.wait_for_change()

    async def wait_for_change(self) -> None:
        await self._changed.wait()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
