"""Polls every engine once a second, so that requests go to those that answer and are ready."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from specdecode_api.internal_api import EngineState
from specdecode_router.call import BreakReason
from specdecode_router.engines import EnginePool, RoutedEngine
from specdecode_router.settings import EngineAddress
from specdecode_router.upstream import EngineLost, NotAnEngine

log = logging.getLogger(__name__)

PERIOD_SECONDS: Final = 1.0
LOST_PERIOD_SECONDS: Final = 0.25
"""Between polls of an engine that does not answer: it may be back at any time."""
TIMEOUTS_ALLOWED: Final = 1
"""A busy engine may answer a poll late; a refused connection counts at once."""


class Poller:
    """One task for each engine of a pool."""

    def __init__(
        self,
        pool: EnginePool,
        read_state: Callable[[EngineAddress], Awaitable[EngineState]],
        *,
        polls_removed: bool = False,
    ) -> None:
        """Poll nothing yet.

        Args:
            read_state: returns an engine's state, or raises `EngineLost` or `NotAnEngine`.
            polls_removed: also while an engine that was removed computes requests, which may be
                lost with it.
        """
        self._pool = pool
        self._read_state = read_state
        self._polls_removed = polls_removed
        self._tasks: dict[RoutedEngine, asyncio.Task[None]] = {}
        self._polled: set[EngineAddress] = set()

    async def run(self) -> None:
        """Poll what the pool contains, until cancelled."""
        try:
            while True:
                self._follow()
                await self._pool.wait_for_change(PERIOD_SECONDS)
        finally:
            for task in self._tasks.values():
                task.cancel()

    def _follow(self) -> None:
        for engine, task in tuple(self._tasks.items()):
            is_needed = self._polls_removed and engine.requests > 0
            if not (self._pool.contains(engine) or is_needed):
                task.cancel()
                del self._tasks[engine]
        for engine in self._pool.engines.values():
            if engine not in self._tasks:
                self._tasks[engine] = asyncio.create_task(self._poll_forever(engine))
        self._note_start()

    def _note_start(self, *polled: EngineAddress) -> None:
        if self._pool.has_started:
            return
        self._polled.update(polled)
        if self._pool.is_discovered and self._pool.engines.keys() <= self._polled:
            self._pool.end_start()

    async def _poll_forever(self, engine: RoutedEngine) -> None:
        timeouts = 0
        while True:
            is_answered = await self._poll(engine, is_patient=timeouts < TIMEOUTS_ALLOWED)
            timeouts = 0 if is_answered else timeouts + 1
            self._note_start(engine.address)
            await asyncio.sleep(PERIOD_SECONDS if is_answered else LOST_PERIOD_SECONDS)

    async def _poll(self, engine: RoutedEngine, *, is_patient: bool) -> bool:
        """Poll an engine; return whether it answered."""
        try:
            state = await self._read_state(engine.address)
        except EngineLost as error:
            engine.silent_polls += error.is_timeout
            is_refused = error.reason is BreakReason.UNREACHABLE
            if is_refused or not is_patient:
                self._lose(engine, f"it does not answer ({error})", has_ended=is_refused)
            return False
        except NotAnEngine as error:
            self._lose(engine, str(error), has_ended=False)
            return False
        if not self._pool.contains(engine):
            engine.silent_polls = 0
            return True
        if engine.reason != state.reason:
            log.info("engine %s (%s): %s", engine.pod, engine.address, state.reason or "ready")
        self._pool.report(engine, state)
        return True

    def _lose(self, engine: RoutedEngine, reason: str, *, has_ended: bool) -> None:
        if not self._pool.contains(engine):
            return
        if engine.reason != reason:
            log.warning("engine %s (%s): %s", engine.pod, engine.address, reason)
        self._pool.lose(engine, reason, has_ended=has_ended)
