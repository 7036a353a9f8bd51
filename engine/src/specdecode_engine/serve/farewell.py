"""Gives up kept connections before the pod ends, so that their next request goes to another one.

A Service balances connections, not requests: a client that keeps one open comes back to this pod
until the connection ends, however long its endpoint has been forgotten. So every answer of a
draining pod asks its client to connect anew, and connections that nobody used meanwhile are closed
when the pod stops. What is left is a request that crosses such a close on its way.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdecode_engine.serve.lifecycle import Lifecycle

CLOSE = (b"connection", b"close")


class Connection(Protocol):
    """What a connection of the server can do."""

    def shutdown(self) -> Any:
        """Close at once when idle, else after the answer that runs."""


class Farewell:
    """Adds `Connection: close` to the answers of a pod that drains."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak ASGI."""

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.is_draining:
                message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
            await send(message)

        await self._app(scope, receive, send_on)


def close_idle(connections: Iterable[Connection]) -> None:
    """Close each connection as soon as nothing runs on it."""
    for connection in tuple(connections):
        connection.shutdown()
