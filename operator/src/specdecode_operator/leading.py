"""One process's turn: it stands by and only watches, works while the Lease is its own, and ends.

What it is told while it stands by goes to the cache and not to the queue: when its turn comes, it
looks at everything.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from specdecode_operator.election import Election
from specdecode_operator.observed import Key
from specdecode_operator.queue import Queue
from specdecode_operator.reconcile import Reconciler
from specdecode_operator.worker import work


class Turn:
    """Lets keys into the queue from when this process works. Owned by the event loop."""

    def __init__(self, queue: Queue[Key], known_keys: Callable[[], Iterable[Key]]) -> None:
        self._queue = queue
        self._known_keys = known_keys
        self.has_come = False

    def begin(self) -> None:
        """Let keys in, and have every known one worked on."""
        self.has_come = True
        self.add_all()

    def add_all(self) -> None:
        """Have every known key worked on."""
        for key in self._known_keys():
            self.add(key)

    def add(self, key: Key) -> None:
        """Have a key worked on."""
        if self.has_come:
            self._queue.add(key)

    def add_after(self, key: Key, delay_s: float) -> None:
        """Have a key worked on after a delay."""
        if self.has_come:
            self._queue.add_after(key, delay_s)


async def lead(
    turn: Turn,
    election: Election | None,
    catch_up: Callable[[], Awaitable[None]],
    workers: Callable[[], Awaitable[None]],
) -> None:
    """Wait for the turn, then work until cancelled; `catch_up` is what a wait makes necessary.

    Raises:
        StartError: when the Lease cannot be had for want of rights.
        LeadershipLost: when somebody else may work now. All workers have ended then.
    """
    if election is not None and await election.win():
        await catch_up()
    turn.begin()
    working = asyncio.ensure_future(workers())
    keeping = asyncio.ensure_future(_keep(election))
    try:
        await asyncio.wait((working, keeping), return_when=asyncio.FIRST_COMPLETED)
        for ended in (keeping, working):
            if ended.done():
                await ended
    finally:
        working.cancel()
        keeping.cancel()
        await asyncio.wait((working, keeping))


async def work_together(queue: Queue[Key], reconciler: Reconciler, count: int) -> None:
    """Work for ever, on `count` keys at a time."""
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(work(queue, reconciler))


async def _keep(election: Election | None) -> None:
    if election is None:
        await asyncio.Event().wait()
    else:
        await election.keep()
