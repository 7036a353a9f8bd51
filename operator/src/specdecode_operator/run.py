"""Wires the parts into one process: Kopf watches, workers reconcile, a resync keeps both honest."""

import asyncio
import logging
import random
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from http import HTTPStatus

from prometheus_client import disable_created_metrics, start_http_server

from specdecode_operator import settings as own_settings
from specdecode_operator.cache import Cache
from specdecode_operator.cluster import ApiError, Cluster, connect
from specdecode_operator.election import Election, LeadershipLost
from specdecode_operator.errors import StartError
from specdecode_operator.handlers import register
from specdecode_operator.health import Vitals
from specdecode_operator.inbox import Inbox
from specdecode_operator.kinds import RESOURCE
from specdecode_operator.metrics import Metrics
from specdecode_operator.observed import Key
from specdecode_operator.peek import Peek, open_peek
from specdecode_operator.queue import Queue
from specdecode_operator.reconcile import Reconciler
from specdecode_operator.resync import Resync
from specdecode_operator.settings import Settings
from specdecode_operator.watching import obey_signals, watch
from specdecode_operator.worker import work

log = logging.getLogger(__name__)

START_RETRY_S = 2.0


async def run(settings: Settings) -> None:
    """Run until told to stop.

    Raises:
        StartError: when the first list does not come through in time, or the Lease is lost.
    """
    stop = asyncio.Event()
    obey_signals(stop)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics = Metrics(own_settings.version())
    try:
        server, _ = start_http_server(settings.metrics_port, registry=metrics.registry)
    except OSError as error:
        raise StartError(f"metrics port {settings.metrics_port}: {error}") from error
    try:
        timeout_s = settings.request_timeout_seconds
        async with (
            connect(settings.kubeconfig, metrics, timeout_s) as cluster,
            open_peek() as peek,
        ):
            await _reconcile_all(settings, cluster, peek, metrics, stop)
    finally:
        server.shutdown()
        server.server_close()


async def _reconcile_all(
    settings: Settings, cluster: Cluster, peek: Peek, metrics: Metrics, stop: asyncio.Event
) -> None:
    cache = Cache()
    queue: Queue[Key] = Queue(time.monotonic, random.Random())
    metrics.watch_queue(queue.depth, queue.oldest_s)
    metrics.watch_resources(cache.resources)
    reconciler = Reconciler(cluster, cache, settings, metrics, lambda: datetime.now(UTC), peek)
    gate = Gate(queue)
    resync = Resync(
        cluster, cache, settings.namespaces, gate.add, gate.add_after, metrics, time.monotonic
    )
    metrics.watch_leadership(lambda: gate.is_open)
    if not await _start_gate(resync, settings.start_timeout_seconds, stop):
        return

    def vitals() -> Vitals:
        age_s = time.monotonic() - (resync.last_success or 0.0)
        return Vitals(age_s, settings.resync_seconds, queue.oldest_s())

    async def lead() -> None:
        """Work while the Lease is ours; losing it ends the process, as nothing else is safe."""
        if election is not None and await election.win():
            await resync.once()
        gate.open(cache.known_keys())
        async with asyncio.TaskGroup() as working:
            tasks = [working.create_task(work(queue, reconciler)) for _ in range(settings.workers)]
            try:
                await (election.keep() if election is not None else stop.wait())
            except LeadershipLost as error:
                ends.append(error)
            finally:
                for task in tasks:
                    task.cancel()

    async def lead_or_stop() -> None:
        try:
            await lead()
        except StartError as error:
            ends.append(error)
        if ends:
            stop.set()

    election = _election(settings, cluster)
    ends: list[Exception] = []
    registry = register(Inbox(cache, gate.add, metrics), vitals, cluster.configuration)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(lead_or_stop()),
            group.create_task(resync.forever(settings.resync_seconds)),
        ]
        log.info("started", extra={"resources": len(cache.known_keys())})
        await watch(registry, settings, stop)
        for task in tasks:
            task.cancel()
    if election is not None:
        await election.release()
    if ends:
        raise StartError(str(ends[0])) from ends[0]


class Gate:
    """Lets keys into the queue while this process works; a standby only watches."""

    def __init__(self, queue: Queue[Key]) -> None:
        self._queue = queue
        self.is_open = False

    def open(self, keys: Iterable[Key]) -> None:
        """Begin, with every known key."""
        self.is_open = True
        for key in keys:
            self._queue.add(key)

    def add(self, key: Key) -> None:
        """Have a key worked on."""
        if self.is_open:
            self._queue.add(key)

    def add_after(self, key: Key, delay_s: float) -> None:
        """Have a key worked on after a delay."""
        if self.is_open:
            self._queue.add_after(key, delay_s)


def _election(settings: Settings, cluster: Cluster) -> Election | None:
    if not settings.leader_election:
        return None
    return Election(
        cluster,
        namespace=own_settings.lease_namespace(settings),
        name=settings.lease_name,
        identity=own_settings.identity(settings),
        clock=time.monotonic,
        now=lambda: datetime.now(UTC),
    )


async def _start_gate(resync: Resync, timeout_s: float, stop: asyncio.Event) -> bool:
    """List everything before the first decision; False when told to stop meanwhile.

    Without it a child whose event comes late looks missing. It also finds a missing definition,
    which Kopf would wait for in silence, and missing rights.
    """
    deadline = time.monotonic() + timeout_s
    while not stop.is_set():
        try:
            await resync.once()
            return True
        except ApiError as error:
            sentence = f"{error}{_remedy(error)}"
            if time.monotonic() > deadline:
                raise StartError(sentence) from error
            log.warning("cannot start yet", extra={"why": sentence})
        await asyncio.sleep(START_RETRY_S)
    return False


def _remedy(error: ApiError) -> str:
    if error.code == HTTPStatus.NOT_FOUND:
        definition = f"{RESOURCE.plural}.{RESOURCE.group}"
        return f"; install the definition {definition}: helm install … --set crds.install=true"
    if error.code == HTTPStatus.FORBIDDEN:
        return "; grant the operator's service account this verb, as the chart does"
    return ""
