"""Kopf as an informer: it watches and calls the handlers, and writes nothing."""

import asyncio
import signal
from collections.abc import Iterable

import kopf

from specdecode_operator.kinds import OWNED_SELECTOR, WATCHED, selector_of
from specdecode_operator.settings import Settings

ERROR_BACKOFFS_S = (1,) + 75 * (2,)
"""Pauses after failed requests. Short, because a status stays untrue until the watches are back;
many, because Kopf ends the process after the last one."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def obey_signals(stop: asyncio.Event) -> None:
    """Set `stop` on signals; process 1 of a container ignores signals without a handler."""
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, stop.set)


async def watch(registry: kopf.OperatorRegistry, settings: Settings, stop: asyncio.Event) -> None:
    """Watch until `stop` is set."""
    ours = asyncio.all_tasks()
    tasks = await kopf.spawn_tasks(
        registry=registry,
        settings=kopf_settings(),
        standalone=True,
        clusterwide=not settings.namespaces,
        namespaces=settings.namespaces,
        # Kopf would look up the user name, which may not exist in a container.
        identity="specdecode-operator",  # type: ignore[arg-type]
        liveness_endpoint=f"http://0.0.0.0:{settings.health_port}/healthz",
        stop_flag=stop,
    )
    obey_signals(stop)  # Kopf has installed its own handlers, which do not set `stop`
    await kopf.run_tasks(tasks, ignored=ours)


def kopf_settings() -> kopf.OperatorSettings:
    """No scanning, no peering, no posting; bounded waits; filters on the server's side."""
    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    settings.posting.enabled = False
    settings.watching.server_timeout = 300
    settings.watching.reconnect_backoff = 1.0
    settings.watching.chunk_size = 500
    selected = {kind.plural for kind in WATCHED if selector_of(kind)}
    settings.watching.label_selectors[lambda resource: resource.plural in selected] = OWNED_SELECTOR
    settings.persistence.diffbase_storage = NoEssence()
    # At the end Kopf waits for its workers, which linger this long after an object's last event.
    settings.queueing.idle_timeout = 1.0
    settings.networking.connect_timeout = 5
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = ERROR_BACKOFFS_S
    settings.process.ultimate_exiting_timeout = 25
    return settings


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
