"""Wires the parts into one process: Kopf watches, workers reconcile, a resync keeps both honest."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime

from prometheus_client import disable_created_metrics, start_http_server

from specdecode_operator import settings as own_settings
from specdecode_operator.cache import Cache
from specdecode_operator.cluster import Cluster, connect
from specdecode_operator.definition import Definition
from specdecode_operator.election import Election, LeadershipLost
from specdecode_operator.errors import StartError
from specdecode_operator.gate import pass_gate
from specdecode_operator.handlers import register
from specdecode_operator.health import Vitals
from specdecode_operator.inbox import Inbox
from specdecode_operator.kinds import ALL
from specdecode_operator.leading import Turn, lead, work_together
from specdecode_operator.metrics import Metrics
from specdecode_operator.observed import Key
from specdecode_operator.peek import Peek, open_peek
from specdecode_operator.queue import Queue
from specdecode_operator.reconcile import Reconciler
from specdecode_operator.resync import Resync
from specdecode_operator.rights import Right, lease_rights, rights
from specdecode_operator.settings import Settings
from specdecode_operator.sighting import Lookout, open_lookout
from specdecode_operator.visits import Visits
from specdecode_operator.watching import obey_signals, watch

log = logging.getLogger(__name__)


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
            open_lookout(time.monotonic) as lookout,
        ):
            await _reconcile_all(settings, cluster, peek, lookout, metrics, stop)
    finally:
        server.shutdown()
        server.server_close()


async def _reconcile_all(
    settings: Settings,
    cluster: Cluster,
    peek: Peek,
    lookout: Lookout,
    metrics: Metrics,
    stop: asyncio.Event,
) -> None:
    cache = Cache()
    queue: Queue[Key] = Queue(time.monotonic, random.Random())
    metrics.watch_queue(queue.depth, queue.oldest_s)
    metrics.watch_resources(cache.resources)
    definition = Definition()
    turn = Turn(queue, cache.known_keys)
    visits = Visits(peek, cache.pods, turn.add)
    reconciler = Reconciler(
        cluster,
        cache,
        settings,
        metrics,
        lambda: datetime.now(UTC),
        peek,
        lookout,
        definition,
        visits.of,
    )
    metrics.watch_leadership(lambda: turn.has_come)
    resync = Resync(
        cluster, cache, settings.namespaces, turn.add, turn.add_after, metrics, time.monotonic
    )
    timeout_s = settings.start_timeout_seconds
    if not await pass_gate(cluster, resync, _rights(settings), timeout_s, stop):
        return
    await definition.look(cluster, metrics)
    election = _election(settings, cluster, resync.want)
    ends: list[Exception] = []

    def vitals() -> Vitals:
        age_s = time.monotonic() - (resync.last_success or 0.0)
        return Vitals(age_s, settings.resync_seconds, queue.oldest_s())

    async def lead_or_stop() -> None:
        """Losing the Lease ends the process: nothing else is safe."""
        try:
            await lead(
                turn,
                election,
                resync.once,
                lambda: work_together(queue, reconciler, settings.workers),
            )
        except (LeadershipLost, StartError) as error:
            ends.append(error)
            stop.set()

    registry = register(Inbox(cache, turn.add, metrics, resync.want), vitals, cluster.renewed)
    async with asyncio.TaskGroup() as group:
        looking = definition.look_on(cluster, metrics, settings.resync_seconds, turn.add_all)
        tasks = [
            group.create_task(lead_or_stop()),
            group.create_task(resync.forever(settings.resync_seconds)),
            group.create_task(looking),
            group.create_task(visits.forever()),
        ]
        log.info("started", extra={"resources": len(cache.known_keys())})
        await watch(registry, settings, stop)
        for task in tasks:
            task.cancel()
    if ends:
        raise StartError(str(ends[0])) from ends[0]
    if election is not None:
        await election.release()


def _rights(settings: Settings) -> tuple[Right, ...]:
    """All that this operator will do."""
    wanted = rights(ALL, settings.namespaces)
    if not settings.leader_election:
        return wanted
    return wanted + lease_rights(own_settings.lease_namespace(settings), settings.lease_name)


def _election(
    settings: Settings, cluster: Cluster, on_return: Callable[[], None]
) -> Election | None:
    if not settings.leader_election:
        return None
    return Election(
        cluster,
        namespace=own_settings.lease_namespace(settings),
        name=settings.lease_name,
        identity=own_settings.identity(settings),
        clock=time.monotonic,
        now=lambda: datetime.now(UTC),
        on_return=on_return,
    )
