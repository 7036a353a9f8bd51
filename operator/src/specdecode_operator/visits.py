"""Asks engines that serve, now and then, what they do worse than they were told to.

In a task of its own: a pod that does not answer keeps no resource waiting.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from specdecode_api.report import Degradation
from specdecode_operator import pods as reading
from specdecode_operator.kinds import Manifest
from specdecode_operator.observed import Key, key_of
from specdecode_operator.peek import Peek

PERIOD_S = 30.0
MAX_PODS = 64
"""Engines asked in a period; more take turns."""
AT_ONCE = 8

Told = dict[str, tuple[Degradation, ...]]


@dataclass(slots=True)
class Visits:
    """What engines said last, by the uid of the pod. Owned by the one task that asks."""

    peek: Peek
    pods: Callable[[], Iterable[Manifest]]
    add: Callable[[Key], None]
    told: Told = field(default_factory=dict)
    _next: int = 0

    async def forever(self, period_s: float = PERIOD_S) -> None:
        """Ask again and again."""
        while True:
            await asyncio.sleep(period_s)
            await self.once()

    async def once(self) -> None:
        """Ask those whose turn it is; have resources looked at of which something else is told."""
        serving = sorted(filter(reading.is_ready, self.pods()), key=_uid)
        self.told = {_uid(pod): self.told.get(_uid(pod), ()) for pod in serving}
        gate = asyncio.Semaphore(AT_ONCE)

        async def ask(pod: Manifest) -> None:
            async with gate:
                answer = await self.peek.degraded(pod)
            if answer is None or answer == self.told.get(_uid(pod)):
                return
            self.told[_uid(pod)] = answer
            key = key_of(pod)
            if key is not None:
                self.add(key)

        start = self._next if self._next < len(serving) else 0
        turn = list(islice(serving, start, start + MAX_PODS))
        self._next = start + len(turn)
        await asyncio.gather(*map(ask, turn))

    def of(self, pods: Iterable[Manifest]) -> tuple[tuple[str, Degradation], ...]:
        """What these pods said: the name of the pod, and what is worse."""
        return tuple(
            (pod["metadata"]["name"], each) for pod in pods for each in self.told.get(_uid(pod), ())
        )


def _uid(pod: Manifest) -> str:
    return str(pod["metadata"].get("uid", ""))
