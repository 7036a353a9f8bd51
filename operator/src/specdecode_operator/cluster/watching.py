"""Kopf as an informer: it watches and calls the handler, and writes nothing.

This is the only module that knows Kopf: no finalizers, no patches, no annotations.
docs/architecture.md states what the operator uses of Kopf, and why not its idioms.
"""

import asyncio
import itertools
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import kopf
from kopf._cogs.clients import errors, watching
from kubernetes.aio.client import Configuration

from specdecode_operator.cluster.cache import Cache
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects.kinds import WATCHED, Manifest, ResourceKind, selector_of
from specdecode_operator.objects.observed import Key
from specdecode_operator.settings import Settings

STALE_RESYNCS = 3
STUCK_S = 600.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """The inputs of the health check."""

    resync_age_s: float
    resync_interval_s: float
    oldest_wait_s: float


def problems(vitals: Vitals) -> tuple[str, ...]:
    """Reasons to restart the operator; empty if it is healthy."""
    found = []
    if vitals.resync_age_s > STALE_RESYNCS * vitals.resync_interval_s:
        found.append(
            f"no resync succeeded for {vitals.resync_age_s:.0f} s, "
            f"one is due every {vitals.resync_interval_s:.0f} s"
        )
    if vitals.oldest_wait_s > STUCK_S:
        found.append(f"a resource has waited {vitals.oldest_wait_s:.0f} s for a worker")
    return tuple(found)


ERROR_BACKOFFS_S = (1,) + 75 * (2,)
"""Pauses after failed requests. Short, because a status stays untrue until the watches are back;
many, because Kopf ends the process after the last one."""

WATCH_PAUSE_S = 2.0
"""Pause after a watch that failed; Kopf adds its own, and sends the list that follows."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)

CANCEL_AGAIN_S = 4.0
"""How long Kopf may take to end; its workers linger for `idle_timeout`."""

CLEANUP = "startup/cleanup activities"
"""Kopf's name of the task that waits for the others and closes the connections."""

LOGIN_PAUSE_S = 2.0
"""Pause before Kopf gets new credentials: the retry interval after a 401."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventHandler:
    """The target of all watch events."""

    cache: Cache
    add: Callable[[Key], None]
    metrics: Metrics

    def handle(self, event_type: str | None, manifest: Manifest) -> None:
        """Handle one event.

        The event of the operator's own write is older than the cached version and queues nothing.

        Args:
            event_type: None for an object of a list.
        """
        self.metrics.events.labels(kind=manifest["kind"]).inc()
        is_gone = event_type == "DELETED"
        key = self.cache.remove(manifest) if is_gone else self.cache.put(manifest)
        if key is not None:
            self.add(key)


def register(
    handler: EventHandler,
    vitals: Callable[[], Vitals],
    credentials: Callable[[], Awaitable[Configuration]],
    kinds: tuple[ResourceKind, ...] = WATCHED,
) -> kopf.OperatorRegistry:
    """Build Kopf's registry; Kopf logs in again after every response of 401."""
    registry = kopf.OperatorRegistry()
    logins = itertools.count()

    async def on_event(event: kopf.RawEvent, **_: Any) -> None:
        handler.handle(event["type"], dict(event["object"]))

    for kind in kinds:
        kopf.on.event(
            group=kind.group,
            version=kind.version,
            plural=kind.plural,
            id=kind.plural,
            registry=registry,
        )(on_event)

    @kopf.on.login(id="login", registry=registry)
    async def on_login(**_: Any) -> kopf.ConnectionInfo:
        number = next(logins)
        if number:
            await asyncio.sleep(LOGIN_PAUSE_S)
        return await connection(await credentials(), number)

    # By default Kopf retries a failed probe inside the request, which then hangs.
    @kopf.on.probe(id="health", errors=kopf.ErrorsMode.PERMANENT, registry=registry)
    async def on_probe(**_: Any) -> str:
        if found := problems(vitals()):
            raise kopf.PermanentError("; ".join(found))
        return "ok"

    return registry


async def connection(configuration: Configuration, login: int) -> kopf.ConnectionInfo:
    """The client's credentials in Kopf's format.

    Kopf never reuses credentials that were rejected, and ends the process when it has no others.
    An API server that has just started rejects valid ones, so the number of the login makes them
    differ.
    """
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    _, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        token=token or None,
        priority=login,
    )


def obey_signals(stop: asyncio.Event) -> None:
    """Set `stop` on signals; process 1 of a container ignores signals without a handler."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)


@asynccontextmanager
async def open_watches(
    registry: kopf.OperatorRegistry,
    settings: Settings,
    stop: asyncio.Event,
    listed: Callable[[], None],
) -> AsyncIterator[None]:
    """Watch during the block, and set `stop` on signals or when Kopf ends before it.

    `listed` is called when a kind has been listed, before it is watched. Of objects that were
    deleted since they had been seen, no list has a trace.

    Every task that the block starts has to end within the block: Kopf takes all other tasks that
    are younger than its own for its own, waits five seconds for them and cancels them.

    Raises:
        Exception: at the end of the block, what ended Kopf.
    """
    others = asyncio.all_tasks()
    is_over = asyncio.Event()
    with watches_restart(listed):
        tasks = await kopf.spawn_tasks(
            registry=registry,
            settings=kopf_settings(settings.operator_class),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            # Kopf would look up the user name, which may not exist in a container.
            identity="specdecode-operator",  # type: ignore[arg-type]
            liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz",
            stop_flag=is_over,
        )
        obey_signals(stop)  # Kopf has installed its own handlers, which do not set `stop`
        for task in tasks:
            task.add_done_callback(lambda _: stop.set())
        try:
            yield
        finally:
            is_over.set()
            await _end(asyncio.create_task(kopf.run_tasks(tasks, ignored=others)), others)


async def _end(ending: asyncio.Task[None], others: Collection[asyncio.Task[Any]]) -> None:
    """Wait until Kopf has ended.

    Kopf cancels each of its tasks once and waits forever: a task that loses this one cancellation,
    as in the `finally` of a watch, would keep the process from its end. So it is repeated.
    """
    while not (await asyncio.wait([ending], timeout=CANCEL_AGAIN_S))[0]:
        for task in asyncio.all_tasks().difference(others, {ending}):
            if task.get_name() == CLEANUP:
                continue
            log.warning("a task of Kopf is cancelled again", extra={"task": task.get_name()})
            task.cancel()
    await ending


@contextmanager
def watches_restart(listed: Callable[[], None]) -> Iterator[None]:
    """Have Kopf list and watch a kind again after whatever ended its watch, as it does after 410.

    Kopf 1.45.2 ends the process after an ERROR event with another code, which an API server sends
    while its watch cache or etcd recovers, after an event that is not JSON, and after 410 for the
    second page of a list; there is no setting for it. A permission or a CRD that is missing still
    ends the process, whose next start names it.
    """
    original = watching.continuous_watch

    async def restarted(**arguments: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(original(**arguments)) as events:  # type: ignore[type-var]
                async for event in events:
                    if event is watching.Bookmark.LISTED:
                        listed()
                    yield event
        except Exception as why:
            if not ends_only_a_watch(why):
                raise
            fields = {"kind": arguments["resource"].kind, "why": f"{type(why).__name__}: {why}"}
            log.warning("a watch failed and restarts", extra=fields)
            await asyncio.sleep(WATCH_PAUSE_S)

    watching.continuous_watch = restarted
    try:
        yield
    finally:
        watching.continuous_watch = original


def ends_only_a_watch(why: Exception) -> bool:
    """Whether an API server sends what caused the error while it recovers, or a proxy does."""
    if isinstance(why, errors.APIError):
        return why.status == HTTPStatus.GONE or isinstance(why, errors.APIServerError)
    return isinstance(why, watching.WatchingError | LookupError | TypeError | ValueError)


def kopf_settings(operator_class: str = "") -> kopf.OperatorSettings:
    """No scanning, no peering, no posting; bounded waits; filters on the server's side."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = 300
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    for kind in WATCHED:
        if selector := selector_of(kind, operator_class):
            settings.watching.label_selectors[_of_kind(kind)] = selector
    settings.persistence.diffbase_storage = NoEssence()
    # At the end Kopf waits for its workers, which linger this long after an object's last event.
    settings.queueing.idle_timeout = 1.0
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = ERROR_BACKOFFS_S
    settings.process.ultimate_exiting_timeout = 25
    return settings


def _of_kind(kind: ResourceKind) -> Callable[[kopf.Resource], bool]:
    return lambda resource: resource.plural == kind.plural


class NoEssence(kopf.DiffBaseStorage):
    """Disables Kopf's copy of every object, which it would use to compute unused diffs."""

    def build(
        self, *, body: kopf.Body, extra_fields: Iterable[kopf.FieldSpec] | None = None
    ) -> kopf.BodyEssence:
        """Nothing of an object is essential."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Nothing was stored before."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Store nothing: the operator does not patch through Kopf."""
