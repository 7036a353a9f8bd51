"""Refuses requests for another host where only programs of this machine may connect, without keys.

A page of another origin whose name an attacker points to 127.0.0.1 would have the origin of this
server for a browser (DNS rebinding): such a request has that name in `Host`.
"""

import ipaddress
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from specdecode_engine.serve.errors import HttpError

MISDIRECTED = 421
LOCALHOST = "localhost"
_REFUSAL = HttpError(
    MISDIRECTED,
    "this server accepts requests for 127.0.0.1 and localhost alone, because it listens there "
    "without an API key: use one of them in the URL, or start the server with an API key or "
    "another --host",
    code="misdirected_request",
)


def is_loopback(host: str) -> bool:
    """Whether an address, or a name in a `Host` header without its port, is of this machine."""
    name = host.strip("[]").lower().removesuffix(".")
    if name == LOCALHOST or name.endswith(f".{LOCALHOST}"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class HostGuard:
    """ASGI middleware that answers 421 to requests whose `Host` is not of this machine.

    Args:
        count_error: called with the status of each refusal.
    """

    def __init__(self, app: ASGIApp, count_error: Callable[[int], None]) -> None:
        self._app = app
        self._count_error = count_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = Headers(scope=scope).get("host") if scope["type"] == "http" else None
        if host is None or is_loopback(_name(host)):  # browsers always send one
            await self._app(scope, receive, send)
            return
        self._count_error(MISDIRECTED)
        await _REFUSAL.response(scope["path"])(scope, receive, send)


def _name(host: str) -> str:
    """Return a `Host` without its port."""
    if host.startswith("["):
        return host.partition("]")[0]
    return host.partition(":")[0]
