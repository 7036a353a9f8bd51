"""The engines that are known: where they are, what they report, and what this router sends them."""

import asyncio
import itertools
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager

from specdecode_api.internal_api import EngineState
from specdecode_api.response_names import has_issued, named_for
from specdecode_router.routing.breaker import Breaker, slow_start_weight
from specdecode_router.routing.choice import RoutingCandidate
from specdecode_router.settings import EngineAddress

DRAINING = "draining"
STOPPING = "stopping"
"""Reasons that an engine reports for not being ready; the first one serves what still comes."""


class RoutedEngine:
    """One engine, from its discovery to its removal.

    `pod` names it in metrics, `arm` groups the pods that a trial compares. `reason` is why it gets
    no requests. `generation` increases when its process may have started again: its prefix cache
    is empty then.
    """

    def __init__(self, address: EngineAddress, pod: str, arm: str, generation: int) -> None:
        self.address = address
        self.pod = pod
        self.arm = arm
        self.generation = generation
        self.breaker = Breaker()
        self.state: EngineState | None = None
        self.reason: str | None = "not polled yet"
        self.requests = 0  # of this router
        self.others = 0  # of other routers, at the latest poll
        self.ready_since_s: float | None = None
        self.polled_s = float("-inf")  # when it last answered
        self.silent_polls = 0  # in a row, to which nothing was answered
        self.last_id: str | None = None  # resume_id, also while it does not answer
        self.response_key: bytes | None = None  # of its process, if that stores responses

    @property
    def name(self) -> str:
        """Its name in the prefix table."""
        return f"{self.address}#{self.generation}"

    def is_usable(self, now_s: float) -> bool:
        """Whether a request may be sent there."""
        return self.reason is None and self.breaker.allows(now_s)

    def answers_stored(self, now_s: float) -> bool:
        """Whether a request that no other engine can answer may be sent there."""
        return self.is_usable(now_s) or self.reason == DRAINING

    def named_for(self, random: str) -> str:
        """Return the name of a response of this engine; `random` is 32 hexadecimal digits."""
        return random if self.response_key is None else named_for(self.response_key, random)

    def candidate(self, now_s: float) -> RoutingCandidate:
        ready_s = 0.0 if self.ready_since_s is None else now_s - self.ready_since_s
        load = self.requests + self.others
        return RoutingCandidate(self.name, self.arm, load, slow_start_weight(ready_s))

    @contextmanager
    def count_request(self) -> Iterator[None]:
        """Count a request while it runs."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1


class EnginePool:
    """All engines by address. Owned by the event loop.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.engines: dict[EngineAddress, RoutedEngine] = {}
        self.is_discovered = False
        self.has_started = False
        """Whether all engines that were there at the start have been polled."""
        self._generations = itertools.count()
        self._changed = asyncio.Event()

    def update(self, found: Mapping[EngineAddress, tuple[str, str]]) -> None:
        """Take over what was discovered: pod and arm of each engine by its address."""
        self.is_discovered = True
        gone = self.engines.keys() - found.keys()
        for address in gone:
            self.engines.pop(address).reason = "removed"
        for address, (pod, arm) in found.items():
            known = self.engines.get(address)
            if known is None or known.pod != pod:
                self.engines[address] = RoutedEngine(address, pod, arm, next(self._generations))
        self.notify()

    def contains(self, engine: RoutedEngine) -> bool:
        """Whether an engine is neither removed nor replaced by another one at its address."""
        return self.engines.get(engine.address) is engine

    def report(self, engine: RoutedEngine, state: EngineState) -> None:
        """Note what an engine has answered to a poll."""
        now_s = self.clock()
        engine.state, engine.polled_s, engine.silent_polls = state, now_s, 0
        engine.last_id = state.resume_id or engine.last_id
        engine.others = max(0, state.requests - engine.requests)
        key = state.response_key
        engine.response_key = None if key is None else bytes.fromhex(key)
        was_ready, engine.reason = engine.reason is None, state.reason
        if engine.reason is None and not was_ready:
            # Engines that were there before this router need no slow start.
            is_new = self.has_started or engine.ready_since_s is not None
            engine.ready_since_s = now_s if is_new else float("-inf")
        self.notify()

    def end_start(self) -> None:
        """Note that all engines were polled once: those that come from now on start slowly."""
        self.has_started = True

    def lose(self, engine: RoutedEngine, reason: str, *, has_ended: bool) -> None:
        """Note that an engine does not answer.

        Args:
            has_ended: nothing listens there, so that its process has ended.
        """
        if has_ended and engine.reason != reason:
            engine.generation = next(self._generations)
            engine.others = 0
            engine.response_key = None
        engine.reason = reason
        self.notify()

    def usable(
        self, resume_id: str | None = None, avoid: Container[EngineAddress] = ()
    ) -> list[RoutedEngine]:
        """Return the engines that may get a request now.

        Args:
            resume_id: only those with this one, where it is given.
            avoid: addresses to leave out.
        """
        now_s = self.clock()
        return [
            each
            for each in self.engines.values()
            if each.address not in avoid
            and each.is_usable(now_s)
            and (resume_id is None or (each.state and each.state.resume_id == resume_id))
        ]

    def storing(self, name: str | None) -> RoutedEngine | None:
        """Return the engine that stores the response with a name, unless it is gone or stopping."""
        if name is None:
            return None
        for each in self.engines.values():
            key = each.response_key
            if key is not None and each.reason != STOPPING and has_issued(key, name):
                return each
        return None

    def known_ids(self) -> list[str | None]:
        """The `resume_id` of every engine, ready or not; None where it is not known yet."""
        return [each.last_id for each in self.engines.values()]

    @property
    def max_body_bytes(self) -> int | None:
        """The largest limit of any engine on a client's body; None while none is known."""
        states = (each.state for each in self.engines.values())
        return max((state.max_body_bytes for state in states if state), default=0) or None

    def notify(self) -> None:
        """Wake what waits for an engine."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def wait_for_change(self, timeout_s: float) -> None:
        """Wait until anything about an engine has changed, at most for a time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return
