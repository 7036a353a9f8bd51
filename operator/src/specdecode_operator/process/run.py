"""Assembles the process: Kopf watches, workers reconcile, resyncs find missed events."""

import asyncio
import logging
import random
import sys
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client import disable_created_metrics, start_http_server

from specdecode_operator import settings as own_settings
from specdecode_operator.cluster.cache import Cache
from specdecode_operator.cluster.cluster import Cluster, connect
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.cluster.served_crd import ServedCrd
from specdecode_operator.cluster.watching import (
    EventHandler,
    Vitals,
    obey_signals,
    open_watches,
    register,
)
from specdecode_operator.engines.engine_client import EngineClient, open_engine_client
from specdecode_operator.engines.engine_poller import EnginePoller
from specdecode_operator.objects.kinds import ALL, INFERENCE_POOL, WATCHED, ResourceKind, permitted
from specdecode_operator.objects.observed import Key
from specdecode_operator.process.errors import StartError
from specdecode_operator.process.heap import collect_forever, frozen_heap
from specdecode_operator.process.leader_election import Election
from specdecode_operator.process.leader_gate import LeaderGate, lead, work_together
from specdecode_operator.process.preflight import (
    Permission,
    lease_permissions,
    pass_preflight,
    permissions,
)
from specdecode_operator.process.queue import Queue
from specdecode_operator.process.resync import POOLS_S, Resync
from specdecode_operator.reconcile import Reconciler
from specdecode_operator.settings import Settings

log = logging.getLogger(__name__)

THREAD_SWITCH_S = 0.001
"""Longest time that the event loop waits for a thread that parses metrics (default: 5 ms)."""


async def run(settings: Settings) -> None:
    """Run until a signal stops the process.

    Raises:
        StartError: a check at the start fails for too long, or workers outlive a lost Lease.
    """
    sys.setswitchinterval(THREAD_SWITCH_S)
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
            open_engine_client() as engines,
        ):
            await _reconcile_all(settings, cluster, engines, metrics, stop)
    finally:
        server.shutdown()
        server.server_close()


@dataclass(frozen=True, slots=True)
class _Components:
    """The long-lived components of one operator process, built once and connected."""

    settings: Settings
    cluster: Cluster
    metrics: Metrics
    cache: Cache
    queue: Queue[Key]
    gate: LeaderGate
    served_crd: ServedCrd
    poller: EnginePoller
    reconciler: Reconciler
    resync: Resync

    def vitals(self) -> Vitals:
        """The inputs of the health check, at this moment."""
        age_s = time.monotonic() - (self.resync.last_success or 0.0)
        return Vitals(age_s, self.settings.resync_seconds, self.queue.oldest_s())


async def _reconcile_all(
    settings: Settings,
    cluster: Cluster,
    engines: EngineClient,
    metrics: Metrics,
    stop: asyncio.Event,
) -> None:
    """Check the start, then reconcile until `stop` is set, and release the Lease."""
    built = _build(settings, cluster, engines, metrics)
    timeout_s = settings.start_timeout_seconds
    if not await pass_preflight(cluster, built.resync, _permissions(settings), timeout_s, stop):
        return
    await built.served_crd.check(cluster, metrics)
    election = _election(settings, cluster)
    with frozen_heap():
        await _run_tasks(built, election, stop)


def _build(
    settings: Settings, cluster: Cluster, engines: EngineClient, metrics: Metrics
) -> _Components:
    """Build and connect the components; nothing runs yet."""
    cache = Cache()
    queue: Queue[Key] = Queue(time.monotonic, random.Random())
    served_crd = ServedCrd()
    gate = LeaderGate(queue, cache.known_keys)
    poller = EnginePoller(engines, time.monotonic, gate.add)
    reconciler = Reconciler(
        cluster,
        cache,
        settings,
        metrics,
        lambda: datetime.now(UTC),
        poller,
        served_crd,
    )
    resync = Resync(
        cluster,
        cache,
        settings.namespaces,
        gate.add,
        gate.add_after,
        metrics,
        time.monotonic,
        _kinds(settings, (*WATCHED, INFERENCE_POOL)),
        settings.operator_class,
    )
    metrics.watch_queue(queue.depth, queue.oldest_s)
    metrics.watch_resources(cache.resources)
    metrics.watch_trials(lambda: reconciler.overdue_trials() if gate.is_open else ())
    metrics.watch_leadership(lambda: gate.is_open)
    return _Components(
        settings, cluster, metrics, cache, queue, gate, served_crd, poller, reconciler, resync
    )


async def _run_tasks(built: _Components, election: Election | None, stop: asyncio.Event) -> None:
    """Watch, resync and lead until `stop` is set; then release the Lease and end the watches.

    Raises:
        StartError: leading is impossible.
    """
    handler = EventHandler(built.cache, built.gate.add, built.metrics)
    kinds = _kinds(built.settings, WATCHED)
    registry = register(handler, built.vitals, built.cluster.api.renewed, kinds)
    failures: list[StartError] = []
    async with open_watches(registry, built.settings, stop, built.resync.want):
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(each)
                for each in (_lead_or_stop(built, election, stop, failures), *_forever(built))
            ]
            log.info("started", extra={"resources": len(built.cache.known_keys())})
            await stop.wait()
            for task in tasks:
                task.cancel()
        if election is not None:
            await election.release()
    if failures:
        raise StartError(str(failures[0])) from failures[0]


def _forever(built: _Components) -> Iterator[Coroutine[Any, Any, None]]:
    """What runs from the start to the end, whether this process leads or not."""
    interval_s = built.settings.resync_seconds
    yield built.resync.forever(interval_s)
    yield built.resync.list_pools_forever(min(POOLS_S, interval_s))
    yield built.served_crd.watch(built.cluster, built.metrics, interval_s, built.gate.add_all)
    yield collect_forever()


async def _lead_or_stop(
    built: _Components,
    election: Election | None,
    stop: asyncio.Event,
    failures: list[StartError],
) -> None:
    """Lead; if leading is impossible, record the error and stop the process."""
    try:
        await lead(
            built.gate,
            election,
            built.resync.until_success,
            lambda: _work(built),
        )
    except StartError as error:
        failures.append(error)
        stop.set()


async def _work(built: _Components) -> None:
    """Reconcile, and poll engines, while this process leads."""
    async with asyncio.TaskGroup() as group:
        group.create_task(built.poller.forever())
        count = built.settings.workers
        group.create_task(work_together(built.queue, built.reconciler, count))


def _kinds(settings: Settings, kinds: tuple[ResourceKind, ...]) -> tuple[ResourceKind, ...]:
    """The kinds that this operator uses."""
    return permitted(
        kinds,
        has_routers=settings.has_routers,
        has_inference_pools=settings.has_inference_pools,
    )


def _permissions(settings: Settings) -> tuple[Permission, ...]:
    """Every permission that this operator uses."""
    wanted = permissions(_kinds(settings, ALL), settings.namespaces)
    if not settings.leader_election:
        return wanted
    return wanted + lease_permissions(own_settings.lease_namespace(settings), settings.lease_name)


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
