"""Closes persistent connections before the pod ends, so that their next request reaches another.

A Service balances connections, not requests: a client with an open connection returns to this pod
until the connection ends, even after the pod's endpoint was removed. Every response of a draining
pod therefore has the header `Connection: close`, and idle connections are closed when the pod
stops. A request can still be lost if it is on its way while its connection is closed.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdecode_engine.serve.lifecycle import ServerLifecycle

CLOSE = (b"connection", b"close")


class Connection(Protocol):
    """A connection of the HTTP server."""

    def shutdown(self) -> Any:
        """Close at once when idle, else after the current response."""


class ConnectionDrain:
    """ASGI middleware that adds `Connection: close` to the responses of a draining pod."""

    def __init__(self, app: ASGIApp, lifecycle: ServerLifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.is_draining:
                message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
            await send(message)

        await self._app(scope, receive, send_with_close)


def close_idle(connections: Iterable[Connection]) -> None:
    """Close each connection as soon as it is idle."""
    for connection in tuple(connections):
        connection.shutdown()
