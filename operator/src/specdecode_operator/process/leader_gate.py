"""Lets a process work only while it leads: it stands by, works, and stands by again.

While the process stands by, watch events reach the cache and not the queue. When it becomes the
leader, every known resource is reconciled.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.objects.observed import Key
from specdecode_operator.process.errors import StartError
from specdecode_operator.process.leader_election import Election
from specdecode_operator.process.queue import Queue
from specdecode_operator.reconcile import Reconciler

log = logging.getLogger(__name__)

STOP_S = 3.0
"""How long workers may continue after a lost Lease; together with the renew deadline it is less
than the duration of the Lease, so two operators never write at the same time."""


class LeaderGate:
    """Lets keys into the queue while this process leads. Owned by the event loop."""

    def __init__(self, queue: Queue[Key], known_keys: Callable[[], Iterable[Key]]) -> None:
        self._queue = queue
        self._known_keys = known_keys
        self.is_open = False

    def open(self) -> None:
        """Let keys in, and queue every known one."""
        self.is_open = True
        self.add_all()

    def close(self) -> None:
        """Keep keys out, and drop those in the queue. All workers must have ended."""
        self.is_open = False
        self._queue.clear()

    def add_all(self) -> None:
        """Queue every known key."""
        for key in self._known_keys():
            self.add(key)

    def add(self, key: Key) -> None:
        """Queue a key."""
        if self.is_open:
            self._queue.add(key)

    def add_after(self, key: Key, delay_s: float) -> None:
        """Queue a key after a delay."""
        if self.is_open:
            self._queue.add_after(key, delay_s)


async def lead(
    gate: LeaderGate,
    election: Election | None,
    catch_up: Callable[[], Awaitable[None]],
    workers: Callable[[], Awaitable[None]],
) -> None:
    """Work whenever this process leads, until cancelled.

    Args:
        election: None for an operator that always leads.
        catch_up: lists everything; awaited before work starts where the process had to stand by.

    Raises:
        StartError: no permission for the Lease, or the workers do not stop without it.
    """
    must_catch_up = False
    while True:
        if election is not None:
            must_catch_up = await election.acquire() or must_catch_up
        await _lead_once(gate, election, catch_up if must_catch_up else None, workers)
        must_catch_up = True


async def _lead_once(
    gate: LeaderGate,
    election: Election | None,
    catch_up: Callable[[], Awaitable[None]] | None,
    workers: Callable[[], Awaitable[None]],
) -> None:
    """Work until the Lease is lost; all workers have ended then."""

    async def start() -> None:
        if catch_up is not None:
            await catch_up()
        gate.open()
        await workers()

    working = asyncio.ensure_future(start())
    keeping = asyncio.ensure_future(_keep(election))
    try:
        await asyncio.wait((working, keeping), return_when=asyncio.FIRST_COMPLETED)
        for ended in (keeping, working):
            if ended.done():
                await ended
    finally:
        await _stop(working, keeping)
        gate.close()


async def _stop(*tasks: asyncio.Future[None]) -> None:
    for task in tasks:
        task.cancel()
    _, running = await asyncio.wait(tasks, timeout=STOP_S)
    if running:
        raise StartError(f"the workers did not stop within {STOP_S:.0f} s after the lease was lost")


async def work_together(queue: Queue[Key], reconciler: Reconciler, count: int) -> None:
    """Work forever, on `count` keys at a time."""
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(_work_forever(queue, reconciler))


async def _work_forever(queue: Queue[Key], reconciler: Reconciler) -> None:
    """Work until cancelled; an error delays only its own key."""
    while True:
        key = await queue.get()
        try:
            await _work_on(key, queue, reconciler)
        finally:
            queue.done(key)


async def _work_on(key: Key, queue: Queue[Key], reconciler: Reconciler) -> None:
    metrics = reconciler.metrics
    try:
        with metrics.reconcile_seconds.time():
            look_again_s = await reconciler.reconcile(key)
    except Exception as error:
        delay_s = queue.retry(key)
        metrics.reconciles.labels(result="error").inc()
        log.warning(
            "reconcile failed",
            exc_info=not isinstance(error, KubeApiError),
            extra={
                "namespace": key.namespace,
                "resource": key.name,
                "why": str(error),
                "retry_s": round(delay_s, 1),
            },
        )
        return
    queue.forget(key)
    metrics.reconciles.labels(result="success").inc()
    if look_again_s is not None:
        queue.add_after(key, look_again_s)


async def _keep(election: Election | None) -> None:
    if election is None:
        await asyncio.Event().wait()
    else:
        await election.keep()
