"""The only Kopf decorators: events into the inbox, a login, a probe; no finalizers, no patches."""

from collections.abc import Awaitable, Callable
from typing import Any

import kopf
from kubernetes.aio.client import Configuration

from specdecode_operator.health import Vitals, problems
from specdecode_operator.inbox import Inbox
from specdecode_operator.kinds import WATCHED


def register(
    inbox: Inbox,
    vitals: Callable[[], Vitals],
    credentials: Callable[[], Awaitable[Configuration]],
) -> kopf.OperatorRegistry:
    """Make the registry that Kopf runs; it asks for credentials whenever its own are refused."""
    registry = kopf.OperatorRegistry()

    async def on_event(event: kopf.RawEvent, memo: kopf.Memo, **_: Any) -> None:
        is_known, memo["is_known"] = "is_known" in memo, True  # kept by Kopf until it is deleted
        inbox.take(event["type"], dict(event["object"]), is_known)

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
        return await connection(await credentials())

    # By default Kopf retries a failed probe inside the request, which then hangs.
    @kopf.on.probe(id="health", errors=kopf.ErrorsMode.PERMANENT, registry=registry)
    async def on_probe(**_: Any) -> str:
        if found := problems(vitals()):
            raise kopf.PermanentError("; ".join(found))
        return "ok"

    return registry


async def connection(configuration: Configuration) -> kopf.ConnectionInfo:
    """The client's credentials in Kopf's words."""
    header = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
    _, _, token = (header or "").rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        token=token or None,
    )
