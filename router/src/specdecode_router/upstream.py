"""Requests to engines: polls, calls of clients and their events."""

import json
import socket
import sys
from collections.abc import Mapping
from http import HTTPStatus

import aiohttp
from pydantic import ValidationError

from specdecode_api.internal_api import (
    HEADER_TOKEN,
    PATH_ENGINE,
    PATH_GENERATE,
    QUERY_RESPONSE_KEY,
    EngineState,
    StreamEvent,
)
from specdecode_router.call import BreakReason, Call
from specdecode_router.router_token import RouterToken
from specdecode_router.settings import EngineAddress
from specdecode_server.error_forms import in_form_of

CONNECT_SECONDS = 2.0
POLL_SECONDS = 4.0
KEEP_ALIVE_IDLE_SECONDS = 10
KEEP_ALIVE_PERIOD_SECONDS = 5
KEEP_ALIVE_PROBES = 3
MAX_REFUSAL_BYTES = 2**20
RELAYED_HEADERS = ("content-type", "retry-after", "www-authenticate")


class EngineLost(Exception):
    """An engine did not answer, or broke off; `error` is what it reported.

    `is_timeout`: nothing answers there, not even the kernel that would refuse a connection.
    """

    def __init__(
        self,
        reason: BreakReason,
        detail: str,
        error: dict[str, object] | None = None,
        *,
        is_timeout: bool = False,
    ) -> None:
        super().__init__(detail)
        self.reason = reason
        self.error = error
        self.is_timeout = is_timeout


class NotAnEngine(Exception):
    """What answers a poll is not an engine that this router can use; the message has the remedy."""


class Refusal(Exception):
    """An engine's response other than 200."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def code(self) -> str | None:
        """The code of OpenAI's error object."""
        try:
            error = json.loads(self.body)["error"]
            return str(error["code"])
        except (ValueError, TypeError, LookupError, RecursionError):
            return None

    def body_for(self, path: str) -> bytes:
        """Return the body in the form of the API that a path belongs to."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return self.body
        given = found if isinstance(found, dict) else {}
        body = in_form_of(path, given, self.status)
        return self.body if body is given else json.dumps(body).encode()

    @property
    def is_busy(self) -> bool:
        """Whether another engine, or this one later, may accept the request."""
        return self.status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)

    @property
    def is_failure(self) -> bool:
        """Whether the engine failed, rather than the request."""
        return self.status >= HTTPStatus.INTERNAL_SERVER_ERROR and not self.is_busy


class EventReader:
    """Cuts the bytes of a stream into events; `rest` is what follows the last one."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Return the events that are complete now, up to the end of a response in one piece."""
        events: list[StreamEvent] = []
        buffer = self.rest + data if self.rest else data
        start = 0
        while (end := buffer.find(b"\n\n", start)) >= 0:
            if buffer.startswith(b"data: ", start):
                event: StreamEvent = json.loads(buffer[start + 6 : end])
                events.append(event)
            start = end + 2
            if events and "end" in events[-1]:
                break
        self.rest = buffer[start:]
        return events


class UpstreamClient:
    """One session for all engines, without a limit on connections."""

    def __init__(self, session: aiohttp.ClientSession, token: RouterToken) -> None:
        self.session = session
        self._token = token

    async def poll(self, address: EngineAddress) -> EngineState:
        """Return an engine's state.

        Raises:
            EngineLost: it does not answer.
            NotAnEngine: it answers otherwise than an engine with this router's token.
        """
        timeout = aiohttp.ClientTimeout(total=POLL_SECONDS, sock_connect=CONNECT_SECONDS)
        try:
            async with self.session.get(
                address.url(f"{PATH_ENGINE}?{QUERY_RESPONSE_KEY}=1"),
                headers=self._headers(),
                timeout=timeout,
            ) as response:
                text = await response.text()
                if response.status != HTTPStatus.OK:
                    raise NotAnEngine(f"it answers {response.status}: {text[:200]}")
                return EngineState.model_validate_json(text)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise lost(error) from None
        except (ValidationError, ValueError) as error:
            raise NotAnEngine(f"it answers with something else: {error}") from None

    async def open(
        self, address: EngineAddress, call: Call, body: bytes, headers: Mapping[str, str]
    ) -> aiohttp.ClientResponse:
        """Send a call, and return the response whose events follow; the caller closes it.

        Args:
            body: as the client sent it.
            headers: of the client, without those of one connection.

        Raises:
            EngineLost: the engine does not answer.
            Refusal: it does not accept the call.
        """
        content = call.envelope().model_dump_json().encode() + b"\n" + body
        try:
            response = await self.session.post(
                address.url(PATH_GENERATE), data=content, headers={**headers, **self._headers()}
            )
            if response.status == HTTPStatus.OK:
                return response
            async with response:
                data = await response.content.read(MAX_REFUSAL_BYTES)
        except (aiohttp.ClientError, OSError) as error:
            raise lost(error) from None
        kept = {
            name: response.headers[name] for name in RELAYED_HEADERS if name in response.headers
        }
        raise Refusal(response.status, kept, data)

    def _headers(self) -> dict[str, str]:
        return {HEADER_TOKEN: self._token.value}


def is_tried_elsewhere(status: int) -> bool:
    """Whether another engine may answer otherwise; 501 is about the request."""
    is_failure = status >= HTTPStatus.INTERNAL_SERVER_ERROR and status != HTTPStatus.NOT_IMPLEMENTED
    return is_failure or status == HTTPStatus.TOO_MANY_REQUESTS


def lost(error: BaseException) -> EngineLost:
    """Return how an engine was lost, from the error of the client."""
    kinds = aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, ConnectionRefusedError
    is_unreachable = isinstance(error, kinds)
    reason = BreakReason.UNREACHABLE if is_unreachable else BreakReason.LOST
    detail = f"{type(error).__name__}: {error}".strip(": ")
    return EngineLost(reason, detail, is_timeout=isinstance(error, TimeoutError))


def open_session() -> aiohttp.ClientSession:
    """Return a session for streams of any length."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0, keepalive_timeout=30.0, socket_factory=_open_socket
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        auto_decompress=False,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
    )


def _open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Return a socket whose peer is probed: a stream may be silent for as long as its host lives.

    A host that is gone, or that has started again, is noticed within 25 s.
    """
    family, kind, protocol, *_ = address
    opened = socket.socket(family, kind, protocol)
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if sys.platform == "linux":
        for option, value in (
            (socket.TCP_KEEPIDLE, KEEP_ALIVE_IDLE_SECONDS),
            (socket.TCP_KEEPINTVL, KEEP_ALIVE_PERIOD_SECONDS),
            (socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES),
        ):
            opened.setsockopt(socket.IPPROTO_TCP, option, value)
    return opened
