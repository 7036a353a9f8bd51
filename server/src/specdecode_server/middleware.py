"""ASGI middleware of every server."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdecode_server.lifecycle import ServerLifecycle

CLOSE = (b"connection", b"close")


class HeadRequests:
    """ASGI middleware that answers HEAD as GET; the server omits the body of the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class ConnectionDrain:
    """ASGI middleware that adds `Connection: close` to the responses of a draining pod.

    A Service balances connections, not requests: a client with an open connection returns to this
    pod until the connection ends, even after the pod's endpoint was removed. Idle connections are
    closed when the pod stops. A request can still be lost if it is on its way meanwhile.
    """

    def __init__(self, app: ASGIApp, lifecycle: ServerLifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.is_draining:
                message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
            await send(message)

        await self._app(scope, receive, send_with_close)
