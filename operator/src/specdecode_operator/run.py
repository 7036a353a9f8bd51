"""Wires the parts into one process: Kopf watches, workers reconcile, a resync keeps both honest."""

import asyncio
import logging
import random
import signal
import time
from datetime import UTC, datetime

import kopf
from prometheus_client import disable_created_metrics, start_http_server

from specdecode_operator import settings as own_settings
from specdecode_operator.cache import Cache
from specdecode_operator.cluster import ApiError, Cluster, connect
from specdecode_operator.errors import StartError
from specdecode_operator.handlers import register
from specdecode_operator.health import Vitals
from specdecode_operator.inbox import Inbox
from specdecode_operator.kinds import OWNED_SELECTOR, RESOURCE
from specdecode_operator.metrics import Metrics
from specdecode_operator.observed import Key
from specdecode_operator.queue import Queue
from specdecode_operator.reconcile import Reconciler
from specdecode_operator.resync import Resync
from specdecode_operator.settings import Settings

log = logging.getLogger(__name__)

START_RETRY_S = 2.0


async def run(settings: Settings) -> None:
    """Run until told to stop.

    Raises:
        StartError: when the first list does not come through in time.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # Process 1 of a container ignores signals without a handler. Kopf later sets its own.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    metrics = Metrics(own_settings.version())
    server, _ = start_http_server(settings.metrics_port, registry=metrics.registry)
    try:
        timeout_s = settings.request_timeout_seconds
        async with connect(settings.kubeconfig, metrics, timeout_s) as cluster:
            await _work(settings, cluster, metrics, stop)
    finally:
        server.shutdown()
        server.server_close()


async def _work(
    settings: Settings, cluster: Cluster, metrics: Metrics, stop: asyncio.Event
) -> None:
    cache = Cache()
    queue: Queue[Key] = Queue(time.monotonic, random.Random())
    metrics.watch_queue(queue.depth, queue.oldest_s)
    resync = Resync(
        cluster, cache, settings.namespaces, queue.add, queue.add_after, metrics, time.monotonic
    )
    reconciler = Reconciler(cluster, cache, settings, metrics, lambda: datetime.now(UTC))
    if not await _start_gate(resync, settings.start_timeout_seconds, stop):
        return
    for key in cache.known_keys():
        queue.add(key)

    def vitals() -> Vitals:
        age_s = time.monotonic() - (resync.last_success or 0.0)
        return Vitals(age_s, settings.resync_seconds, queue.oldest_s())

    registry = register(Inbox(cache, queue.add, metrics), vitals, cluster.configuration)
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(resync.forever(settings.resync_seconds)),
            *(group.create_task(_worker(queue, reconciler)) for _ in range(settings.workers)),
        ]
        log.info("started", extra={"resources": len(cache.known_keys())})
        await kopf.operator(
            registry=registry,
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            # Kopf would ask for the name of the user, which a container need not have.
            identity="specdecode-operator",  # type: ignore[arg-type]
            liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz",
            stop_flag=stop,
        )
        for task in tasks:
            task.cancel()


async def _start_gate(resync: Resync, timeout_s: float, stop: asyncio.Event) -> bool:
    """List everything before the first decision; False when told to stop meanwhile.

    Without it a child whose event comes late looks missing. It also finds a missing CRD, which
    Kopf would wait for in silence, and missing rights.
    """
    deadline = time.monotonic() + timeout_s
    while not stop.is_set():
        try:
            await resync.once()
            return True
        except ApiError as error:
            if time.monotonic() > deadline:
                raise StartError(f"{error}{_remedy(error)}") from error
            log.warning("cannot start yet", extra={"why": f"{error}{_remedy(error)}"})
        await asyncio.sleep(START_RETRY_S)
    return False


def _remedy(error: ApiError) -> str:
    if error.code == 404:
        crd = f"{RESOURCE.plural}.{RESOURCE.group}"
        return f"; install the CRD {crd}, with the chart's crds.install=true for instance"
    if error.code == 403:
        return "; grant the operator's service account this verb, as the chart does"
    return ""


async def _worker(queue: Queue[Key], reconciler: Reconciler) -> None:
    """Reconcile one key after the other; an error delays its key and no other."""
    metrics = reconciler.metrics
    while True:
        key = await queue.get()
        try:
            with metrics.reconcile_seconds.time():
                look_again_s = await reconciler.reconcile(key)
        except Exception as error:
            delay_s = queue.retry(key)
            metrics.reconciles.labels(result="error").inc()
            is_surprise = not isinstance(error, ApiError)
            why = {"why": str(error), "retry_s": round(delay_s, 1)}
            log.warning("failed", exc_info=is_surprise, extra=_fields(key) | why)
        else:
            queue.forget(key)
            metrics.reconciles.labels(result="success").inc()
            if look_again_s is not None:
                queue.add_after(key, look_again_s)
        finally:
            queue.done(key)


def _fields(key: Key) -> dict[str, object]:
    return {"namespace": key.namespace, "resource": key.name}


def kopf_settings() -> kopf.OperatorSettings:
    """Kopf as an informer: no scanning, no peering, bounded waits, filters on the server's side."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = 300
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    settings.watching.label_selectors[lambda resource: resource.plural != RESOURCE.plural] = (
        OWNED_SELECTOR
    )
    # At the end Kopf waits for its workers, which linger this long after an object's last event.
    settings.queueing.idle_timeout = 1.0
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = (1, 2, 4, 8, 15, 30, 30, 30, 30)
    settings.process.ultimate_exiting_timeout = 25
    return settings
