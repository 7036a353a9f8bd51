"""Polls serving engines for their degradations.

Runs in its own task, so that a pod without a response delays no reconcile.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from specdecode_api.report import Degradation
from specdecode_operator import pods as reading
from specdecode_operator.engine_client import EngineClient
from specdecode_operator.kinds import Manifest
from specdecode_operator.observed import Key, key_of

PERIOD_S = 30.0
MAX_PODS = 64
"""Engines polled per period; with more engines, periods alternate between them."""
AT_ONCE = 8

Degraded = dict[str, tuple[Degradation, ...]]


@dataclass(slots=True)
class DegradationPoller:
    """The latest degradations by pod uid. Owned by the task that polls."""

    engines: EngineClient
    pods: Callable[[], Iterable[Manifest]]
    add: Callable[[Key], None]
    latest: Degraded = field(default_factory=dict)
    _next: int = 0

    async def forever(self, period_s: float = PERIOD_S) -> None:
        """Poll until cancelled."""
        while True:
            await asyncio.sleep(period_s)
            await self.once()

    async def once(self) -> None:
        """Poll the next engines, and queue the resource of each engine whose report changed."""
        serving = sorted(filter(reading.is_ready, self.pods()), key=_uid)
        self.latest = {_uid(pod): self.latest.get(_uid(pod), ()) for pod in serving}
        gate = asyncio.Semaphore(AT_ONCE)

        async def poll(pod: Manifest) -> None:
            async with gate:
                report = await self.engines.degraded(pod)
            if report is None or report == self.latest.get(_uid(pod)):
                return
            self.latest[_uid(pod)] = report
            key = key_of(pod)
            if key is not None:
                self.add(key)

        start = self._next if self._next < len(serving) else 0
        batch = list(islice(serving, start, start + MAX_PODS))
        self._next = start + len(batch)
        await asyncio.gather(*map(poll, batch))

    def of(self, pods: Iterable[Manifest]) -> tuple[tuple[str, Degradation], ...]:
        """The latest degradations of these pods, each with the name of its pod."""
        return tuple(
            (pod["metadata"]["name"], each)
            for pod in pods
            for each in self.latest.get(_uid(pod), ())
        )


def _uid(pod: Manifest) -> str:
    return str(pod["metadata"].get("uid", ""))
