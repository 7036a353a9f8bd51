"""ASGI middleware of every server."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdecode_server.error_forms import is_messages
from specdecode_server.lifecycle import ServerLifecycle

CLOSE = (b"connection", b"close")
KEEP_ALIVE = b": keep-alive\n\n"
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
"""The same in Anthropic's API."""
KEEP_ALIVE_SECONDS = 15.0
"""As the standard of server-sent events advises. Proxies close idle connections after 30 to 60."""


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


class StreamKeepAlive:
    """ASGI middleware that sends a comment, or a ping, in a stream of events that has been silent.

    A stream may wait for longer than proxies keep an idle connection: for a long prompt, or for
    the next engine after one was lost. Clients ignore comments. Every part that the app sends
    consists of whole events.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = _EventStream(send, PING if is_messages(scope.get("path", "")) else KEEP_ALIVE)
        try:
            await self._app(scope, receive, stream.send)
        finally:
            stream.end()


class _EventStream:
    """A response, with comments if it is a stream of events."""

    def __init__(self, send: Send, keep_alive: bytes) -> None:
        self._send = send
        self._keep_alive: Message = {
            "type": "http.response.body", "body": keep_alive, "more_body": True
        }  # fmt: skip
        self._now = asyncio.get_running_loop().time
        self._sent_s = self._now()
        self._is_sending = False
        self._beating: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            content_type = Headers(raw=message["headers"]).get("content-type", "")
            if content_type.startswith("text/event-stream"):
                self._beating = asyncio.create_task(self._beat())
        elif not message.get("more_body"):
            self.end()
        self._is_sending = True  # also while the client is slow to read
        await self._send(message)
        self._is_sending, self._sent_s = False, self._now()

    def end(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            self._beating = None  # it refers to this stream

    async def _beat(self) -> None:
        while True:
            silent_s = self._now() - self._sent_s
            if silent_s >= KEEP_ALIVE_SECONDS and not self._is_sending:
                await self._send(self._keep_alive)
                self._sent_s, silent_s = self._now(), 0.0
            await asyncio.sleep(max(KEEP_ALIVE_SECONDS - silent_s, KEEP_ALIVE_SECONDS / 10))
