"""The only Kopf decorators: events to the handler, a login, a probe; no finalizers, no patches."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from specdecode_operator.event_handler import EventHandler
from specdecode_operator.health import Vitals, problems
from specdecode_operator.kinds import WATCHED

LOGIN_PAUSE_S = 2.0
"""Pause before Kopf gets new credentials: the retry interval after a 401."""


def register(
    handler: EventHandler,
    vitals: Callable[[], Vitals],
    credentials: Callable[[], Awaitable[Configuration]],
) -> kopf.OperatorRegistry:
    """Build Kopf's registry; Kopf logs in again after every response of 401."""
    registry = kopf.OperatorRegistry()
    logins = itertools.count()

    async def on_event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
        is_known, memo["is_known"] = (
            "is_known" in memo,
            True,
        )  # kept by Kopf until the object is deleted
        handler.handle(event["type"], dict(event["object"]), is_known)

    for kind in WATCHED:
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
