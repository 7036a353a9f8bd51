"""The streams whose text and gaps are compared, and what one of them contained."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from checks.fuzz.fields import MODEL

STREAMS = 16
TOKENS = 160
PROMPTS = (
    "Count from one to twenty.",
    "The first day of the week",
    "What is speculative decoding?",
    "Once upon a time there was",
)
TEXT_END = 250


def stream_body(number: int) -> tuple[str, dict[str, Any]]:
    """Return path and body of a stream: both APIs, greedy and sampled, every fourth constrained."""
    prompt = PROMPTS[number // 4 % len(PROMPTS)]
    body: dict[str, Any] = {
        "model": MODEL,
        "stream": True,
        "seed": number,
        "temperature": (0.0, 0.8)[number % 2],
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }
    if number % 4 == 3:
        body["guided_regex"] = "([a-z]{1,9} ){40,80}"
    if number % 8 == 5:
        body["speculation"] = {"max_steps": 1}
    if number % 4 in (0, 1):
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}
    return "/v1/completions", body | {"prompt": prompt}


@dataclass(frozen=True, slots=True)
class StreamResult:
    """Status of a response and, of a whole stream, its text; `error` is why it is not whole."""

    status: int
    text: str = ""
    error: str = ""


ReportGap = Callable[[float, float], None]
"""Called with the times of two successive events of a stream, in seconds of the monotonic clock."""


class StreamProtocol(asyncio.Protocol):
    """Collects a response and reports the gap between two of its parts."""

    def __init__(self, request: bytes, report_gap: ReportGap) -> None:
        self._request = request
        self._report_gap = report_gap
        self._last_s: float | None = None
        self._parts: list[bytes] = []
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parts.append(data)
        if b"data: {" not in data:
            return
        now_s = time.monotonic()
        if self._last_s is not None:
            self._report_gap(self._last_s, now_s)
        self._last_s = now_s

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    @property
    def data(self) -> bytes:
        return b"".join(self._parts)


async def read_stream(number: int, port: int, report_gap: ReportGap) -> StreamResult:
    """Run one stream to its end."""
    path, body = stream_body(number)
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    head += f"connection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    loop = asyncio.get_running_loop()
    try:
        transport, protocol = await loop.create_connection(
            lambda: StreamProtocol(head.encode() + content, report_gap), "127.0.0.1", port
        )
    except OSError as error:
        return StreamResult(0, error=str(error))
    try:
        await protocol.closed
    finally:
        transport.abort()
    return parse_stream(protocol.data)


def parse_stream(response: bytes) -> StreamResult:
    """Return status and text of a response with chunked server-sent events."""
    head, _, rest = response.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        return StreamResult(0, error="no response")
    status = int(head.split()[1])
    if status != 200:
        return StreamResult(status, error=rest[:200].decode(errors="replace"))
    body = _join_chunks(rest)
    if b"data: [DONE]" not in body:
        return StreamResult(status, error="the stream was cut")
    text = ""
    for line in body.split(b"\n"):
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                return StreamResult(status, text, str(event["error"])[:TEXT_END])
            for choice in event["choices"]:
                text += choice.get("text") or choice.get("delta", {}).get("content") or ""
    return StreamResult(status, text)


def _join_chunks(data: bytes) -> bytes:
    body, at = bytearray(), 0
    while (end := data.find(b"\r\n", at)) > 0 and (size := int(data[at:end], 16)):
        body += data[end + 2 : end + 2 + size]
        at = end + 4 + size
    return bytes(body)
