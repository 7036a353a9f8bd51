"""A client's request, and the response that it gets: headers, deadline, bytes."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Send

from specdecode_api.internal_api import INTERNAL_HEADER_PREFIX, GenerationPath
from specdecode_api.names import HEADER_OWNER, HEADER_SESSION, HEADER_TIMEOUT
from specdecode_router.routing.prompt_blocks import PromptBlocks
from specdecode_server.errors import SHOWN_VALUE_CHARS, invalid

MAX_TIMEOUT_SECONDS: Final = 3600.0
EVENT_STREAM: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
JSON: Final = [(b"content-type", b"application/json")]

# Of one connection, or set again for the next one.
_DROPPED: Final = frozenset(
    {
        "host", "connection", "keep-alive", "proxy-authenticate", "proxy-authorization",
        "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length",
        "expect", "accept-encoding", "cookie", HEADER_OWNER.lower(),
    }
)  # fmt: skip
_NUMBER: Final = re.compile(r"[0-9]{1,6}(\.[0-9]{1,3})?")


def forwarded_headers(headers: Headers) -> dict[str, str]:
    """Return the headers that an engine gets: none of this connection, none of routers."""
    named = {name.strip().lower() for name in headers.get("connection", "").split(",")}
    return {
        name: value
        for name, value in headers.items()
        if name not in _DROPPED
        and name not in named
        and not name.startswith(INTERNAL_HEADER_PREFIX)
    }


def timeout_seconds(headers: Headers, default_s: float) -> float:
    """Return how long a request waits for an engine, or raise `HttpError`."""
    text = headers.get(HEADER_TIMEOUT)
    if text is None:
        return default_s
    if not _NUMBER.fullmatch(text) or float(text) > MAX_TIMEOUT_SECONDS:
        shown = text[:SHOWN_VALUE_CHARS]
        raise invalid(
            HEADER_TIMEOUT,
            f"{HEADER_TIMEOUT} is {shown!r}; send seconds from 0 to {MAX_TIMEOUT_SECONDS:g}",
        )
    return float(text)


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What the router keeps of a request until its response is complete; times are monotonic."""

    path: GenerationPath
    headers: Mapping[str, str]
    body: bytes
    prompt: PromptBlocks
    session: bytes | None
    arrived_s: float
    timeout_s: float
    named: str | None = None  # a stored response


def session_of(headers: Headers) -> bytes | None:
    """Return the session that a client names, if it does."""
    text = headers.get(HEADER_SESSION)
    return text.encode("latin-1") if text else None


class ClientResponse:
    """Writes one response: a stream, or one piece."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last = b""
        self.status: int | None = None  # once it has begun

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Send status and headers, if they are not sent."""
        if self.status is None:
            self.status = status
            start = {"type": "http.response.start", "status": status, "headers": [*headers]}
            await self._send(start)

    async def write(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def keep_last(self, data: bytes) -> None:
        """Keep the last part, which `end` sends in one write with the end."""
        self._last = data

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": self._last})
