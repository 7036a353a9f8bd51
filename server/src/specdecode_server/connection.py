"""HTTP/1.1 of one connection, with limits on the time and the size of what a client sends.

Uvicorn's httptools protocol has neither: half a request may stay open forever, and the parser
collects a header of any length.
"""

import asyncio
import json
import re
from collections.abc import Callable
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from specdecode_server.errors import HttpError

MAX_HEAD_BYTES = 64 * 2**10
"""Of request line and headers, trailers included."""
MAX_DISCARDED_BYTES = 64 * 2**20
"""Of a body whose request is answered: most clients read the answer only after they sent it."""
MAX_PIPELINED = 100
"""Requests of a connection that wait for the response to an earlier one; with more it is closed. A
client can send thousands in the time that one takes."""
DISCARD_SECONDS = 30.0
"""For a client that still sends after the response that ends its connection."""


_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


class LimitedConfig(uvicorn.Config):
    """The configuration of a server of `LimitedProtocol` connections.

    Args:
        headers_timeout_s: from the first byte of a request to the end of its headers.
        body_timeout_s: from there to the end of its body.
        options: those of uvicorn.
    """

    def __init__(
        self, app: ASGIApp, headers_timeout_s: float, body_timeout_s: float, **options: Any
    ) -> None:
        super().__init__(app, http=LimitedProtocol, **options)
        self.headers_timeout_s = headers_timeout_s
        self.body_timeout_s = body_timeout_s


class ConnectionPhase(StrEnum):
    """What the client of a connection sends next."""

    FIRST = "its first request"
    HEAD = "the headers of a request"
    BODY = "the body of a request"
    NOTHING = "nothing"


class HeadTooLarge(Exception):
    """The request line and the headers of a request are larger than `MAX_HEAD_BYTES`."""


class TooManyPipelined(Exception):
    """More than `MAX_PIPELINED` requests wait for the response to an earlier one."""


class ResponseTransport:
    """The transport of a response, with another way to close the connection after it."""

    def __init__(self, transport: asyncio.Transport, close: Callable[[], None]) -> None:
        self.write = transport.write
        self.is_closing = transport.is_closing
        self.close = close


class LimitedProtocol(HttpToolsProtocol):
    """Closes a connection whose client exceeds a limit; while it can, it answers 408 or 431."""

    config: LimitedConfig

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._phase = ConnectionPhase.FIRST
        self._requests = 0
        self._running: RequestResponseCycle | None = None  # `cycle` may wait for its response
        self._watched: tuple[int, ConnectionPhase] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._unreported_bytes = 0  # since the parser last reported anything
        self._discarded_bytes = 0
        self._is_discarding = False  # everything that the client still sends

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)
        if self._running is not None:  # uvicorn notifies the latest request alone
            self._running.disconnected = not self._running.response_complete
            self._running.message_event.set()
        self.pipeline.clear()
        self._release()

    def _release(self) -> None:
        """Drop what refers back to this connection, so that no garbage collection has to find it.

        A request that still runs keeps what it needs.
        """
        self.cycle = self._running = self.parser = None  # type: ignore[assignment]

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._is_discarding:
            self._discard(data)
            return
        self._unreported_bytes += len(data)
        if self._phase in (ConnectionPhase.FIRST, ConnectionPhase.NOTHING):
            data = _without_upgrade(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._unreported_bytes > MAX_HEAD_BYTES:
            self._head_bytes += self._unreported_bytes
            self.send_400_response("")
        elif self._phase is ConnectionPhase.BODY and self.cycle.response_complete:
            self._discard(data)
        if not self._is_discarding:
            self._watch()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._requests += 1
        self._phase = ConnectionPhase.HEAD
        self._head_bytes = self._unreported_bytes = self._discarded_bytes = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if len(self.pipeline) > MAX_PIPELINED:
            raise TooManyPipelined  # the connection is closed: another response is due first
        self.flow.resume_reading()  # else a client that leaves would not be noticed
        self.cycle.transport = ResponseTransport(self.transport, self._close)  # type: ignore[assignment]
        self._phase = ConnectionPhase.BODY
        self._unreported_bytes = 0

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._unreported_bytes = 0

    def on_message_complete(self) -> None:
        super().on_message_complete()
        # What follows CONNECT is not HTTP: the client sends on until it has read the refusal.
        if self.scope["method"] != "CONNECT":
            self._phase = ConnectionPhase.NOTHING
        self._unreported_bytes = 0

    def on_response_complete(self) -> None:
        if self._is_discarding:
            self.server_state.total_requests += 1
        else:
            super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer a request that cannot be parsed, or whose headers are too large, and close."""
        if self._phase is ConnectionPhase.FIRST:  # the parser failed before it began a message
            self._phase = ConnectionPhase.HEAD
        if self._head_bytes > MAX_HEAD_BYTES:
            message = f"request line and headers exceed {MAX_HEAD_BYTES} bytes; shorten them"
            self._end(HttpError(431, message, code="headers_too_large"))
        else:
            error = HttpError(400, "the request is not valid HTTP/1.1", code="invalid_http")
            self._end(error, reads_on=True)

    def _count_head(self, size: int) -> None:
        self._unreported_bytes = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEAD_BYTES:
            raise HeadTooLarge  # the parser stops, and uvicorn calls `send_400_response`

    def _watch(self) -> None:
        """Start the timer of a phase when it begins."""
        if self._watched == (self._requests, self._phase):
            return
        self._watched = (self._requests, self._phase)
        self._cancel_timer()
        if self._phase is not ConnectionPhase.NOTHING:
            self._timer = self.loop.call_later(self._seconds(), self._expire)

    def _seconds(self) -> float:
        match self._phase:
            case ConnectionPhase.HEAD:
                return self.config.headers_timeout_s
            case ConnectionPhase.BODY:
                return self.config.body_timeout_s
            case _:
                return float(self.timeout_keep_alive)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        if self._is_server_slow():
            self._timer = self.loop.call_later(self._seconds(), self._expire)
            return
        self._timer = None
        message = f"the client did not send {self._phase} within {self._seconds():g} s"
        self._end(HttpError(408, f"{message}; send it at once", code="request_timeout"))

    def _is_server_slow(self) -> bool:
        """Whether the client waits for this server: for an earlier response, or to be read."""
        is_responding = self.cycle is not None and not self.cycle.response_complete
        is_earlier = self._phase is ConnectionPhase.HEAD or bool(self.pipeline)
        return self.flow.read_paused or (is_responding and is_earlier)

    def _end(self, error: HttpError, *, reads_on: bool = False) -> None:
        """Close, after the error where no response has begun and a request has.

        With `reads_on`, a client that still sends can read the error.
        """
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_begun = (
            self._phase is ConnectionPhase.BODY and cycle is not None and cycle.response_started
        )
        is_due = self._is_another_due()
        is_answered = self._phase is not ConnectionPhase.FIRST and not is_begun and not is_due
        if is_answered:
            self.transport.write(_response(error))
        if is_answered and reads_on:
            self._discard_the_rest()
        else:
            self.transport.close()

    def _is_another_due(self) -> bool:
        """Whether a response has begun, or one comes before that to the latest request."""
        running = self._running
        if running is None or running.response_complete:
            return False
        return running.response_started or running is not self.cycle

    def _close(self) -> None:
        """Close the connection, or only this side of it while the client sends a request.

        Data that arrives at a closed connection resets it, and the client loses the response.
        """
        if self._phase in (ConnectionPhase.FIRST, ConnectionPhase.NOTHING):
            self.transport.close()
        else:
            self._discard_the_rest()

    def _discard_the_rest(self) -> None:
        self._is_discarding = True
        self._cancel_timer()
        self._timer = self.loop.call_later(DISCARD_SECONDS, self.transport.close)
        self.transport.write_eof()
        self.flow.resume_reading()

    def _discard(self, data: bytes) -> None:
        self._discarded_bytes += len(data)
        if self._discarded_bytes > MAX_DISCARDED_BYTES:
            self.transport.close()


def _without_upgrade(data: bytes) -> bytes:
    """Remove an offer of another protocol from the head of a request: nothing else is served here.

    The parser would skip the body, which Java's client sends with an offer of HTTP/2.
    """
    head, separator, rest = data.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"", head) + separator + rest if _UPGRADE.search(head) else data


def _response(error: HttpError) -> bytes:
    body = json.dumps(error.body).encode()
    status = HTTPStatus(error.status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
