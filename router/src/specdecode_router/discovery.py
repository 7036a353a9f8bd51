"""Which engines there are: a list of addresses, or the EndpointSlices of a Service."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from specdecode_api import names
from specdecode_router.engines import EnginePool
from specdecode_router.settings import EngineAddress, EngineRuntime, RouterSettings

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 1.0

Found = Mapping[EngineAddress, tuple[str, str]]
"""Pod and arm of each engine."""


async def discover(
    settings: RouterSettings, pool: EnginePool, forget: Callable[[frozenset[str]], None]
) -> None:
    """Keep a pool up to date, until cancelled.

    Args:
        forget: called with the names of all engines when they have changed.
    """

    def update(found: Found) -> None:
        pool.update(found)
        forget(frozenset(pod for pod, _ in found.values()))

    if settings.engines:
        update({address: (str(address), "") for address in settings.engines})
        await asyncio.Event().wait()
    await _follow_slices(settings, update)


async def _follow_slices(settings: RouterSettings, update: Callable[[Found], None]) -> None:
    """List and watch the EndpointSlices.

    The known engines stay without the API server, and without any slice: a Service has one even
    without pods, so the Service was deleted, and this router is about to end.
    """
    # Imported here: the client takes a second and 60 MB, which a list of engines does not need.
    from specdecode_router.kube_watch import ListExpired, open_watch

    assert settings.service is not None
    assert settings.namespace is not None
    is_first = True
    while True:
        try:
            async with open_watch(
                settings.kubeconfig, settings.namespace, settings.service
            ) as slices:
                known: dict[str, Mapping[str, Any]] = {}
                async for kind, manifest in slices:
                    _apply(known, kind, manifest)
                    if kind != "LIST" and (known or is_first):
                        is_first = False
                        update(engines_of(known.values(), settings.deployment, settings.runtime))
        except ListExpired:
            continue
        except Exception as error:  # the client raises many kinds; the known engines stay in use
            log.warning("EndpointSlices are not watched: %s: %s", type(error).__name__, error)
            await asyncio.sleep(RETRY_SECONDS * (1 + random.random()))


def _apply(known: dict[str, Mapping[str, Any]], kind: str, manifest: Mapping[str, Any]) -> None:
    name = manifest.get("metadata", {}).get("name", "")
    if kind == "DELETED":
        known.pop(name, None)
    elif kind in ("LIST", "ADDED", "MODIFIED"):
        known[name] = manifest


def engines_of(
    slices: Iterable[Mapping[str, Any]],
    deployment: str,
    runtime: EngineRuntime = EngineRuntime.SPECDECODE,
) -> Found:
    """Return the management ports of all pods that are not terminating.

    A pod that is not ready is known too: it is polled, and gets requests as soon as it is ready.

    An engine of another runtime does not report that it shuts down. The conditions of its endpoint
    decide: it is left out as soon as it is terminating or not ready, and its API port is returned.
    """
    is_other = runtime is not EngineRuntime.SPECDECODE
    name = names.ENGINE_PORT_NAME if is_other else names.MANAGEMENT_PORT_NAME
    found: dict[EngineAddress, tuple[str, str]] = {}
    for each in slices:
        ports = [
            port["port"]
            for port in each.get("ports") or ()
            if port.get("name") == name and port.get("port")
        ]
        for endpoint in each.get("endpoints") or ():
            conditions = endpoint.get("conditions") or {}
            if not ports or (conditions.get("terminating") and not conditions.get("serving")):
                continue
            if is_other and (conditions.get("terminating") or conditions.get("ready") is False):
                continue
            pod = str((endpoint.get("targetRef") or {}).get("name", ""))
            for host in (endpoint.get("addresses") or ())[:1]:
                address = EngineAddress(host, ports[0])
                found[address] = (pod or str(address), arm_of(pod, deployment))
    return found


def arm_of(pod: str, deployment: str) -> str:
    """Return the role of a pod in a trial, from its name: DEPLOYMENT[-ROLE]-HASH-SUFFIX."""
    parts = pod.removeprefix(f"{deployment}-").split("-")
    is_role = len(parts) == 3 and parts[0] in (names.ROLE_CANARY, names.ROLE_BASELINE)
    return parts[0] if is_role and deployment else names.ROLE_STABLE
