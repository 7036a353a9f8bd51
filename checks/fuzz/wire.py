"""Sends one request over a connection of its own, well or badly, and reads what comes back."""

import asyncio
import random
import re
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum

STATUS = re.compile(rb"(?:^|(?<=[\r\n}]))HTTP/1\.1 (\d{3}) ")
KEPT_BYTES = 256 * 2**10
SLOW_PAUSE_S = 0.05


class Delivery(StrEnum):
    """How a request is sent."""

    WHOLE = "whole"
    CHUNKED = "chunked"
    BAD_CHUNKS = "bad chunks"
    CUT = "cut"
    SLOW = "slow"
    PIPELINED = "pipelined"
    LEAVE = "leave"
    """The client disconnects while it reads the response."""
    HALF_CLOSED = "half closed"


MUST_BE_ANSWERED = (Delivery.WHOLE, Delivery.CHUNKED, Delivery.SLOW, Delivery.PIPELINED)


@dataclass(frozen=True, slots=True)
class WireRequest:
    """The bytes of a request; `head` has no Content-Length and no final empty line."""

    head: bytes
    body: bytes
    delivery: Delivery = Delivery.WHOLE
    is_malformed: bool = False


@dataclass(slots=True)
class WireReply:
    """The statuses of all responses, and the beginning and end of their bytes."""

    statuses: list[int] = field(default_factory=list)
    data: bytes = b""
    is_timeout: bool = False
    is_refused: bool = False

    def is_retryable(self) -> bool:
        """Whether the response has Retry-After."""
        return b"\r\nretry-after:" in self.data.lower()


async def send(
    request: WireRequest, host: str, port: int, rng: random.Random, timeout_s: float
) -> WireReply:
    """Send a request; return what was received until the connection ended or time was up."""
    reply = WireReply()
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        reply.is_refused = True
        return reply
    sending = asyncio.create_task(_write(request, writer, rng))
    try:
        async with asyncio.timeout(timeout_s):
            await _read(request, reader, reply, rng)
    except TimeoutError:
        reply.is_timeout = True
    except OSError:
        pass  # the server has closed
    finally:
        sending.cancel()
        with suppress(asyncio.CancelledError, OSError):
            await sending
        writer.transport.abort()
    reply.statuses = [int(found) for found in STATUS.findall(reply.data)]
    return reply


async def _read(
    request: WireRequest, reader: asyncio.StreamReader, reply: WireReply, rng: random.Random
) -> None:
    leaves_after = rng.choice((1, 200, 2000)) if request.delivery is Delivery.LEAVE else None
    received = 0
    while part := await reader.read(2**16):
        received += len(part)
        reply.data += part
        if len(reply.data) > 2 * KEPT_BYTES:
            reply.data = reply.data[:KEPT_BYTES] + reply.data[-KEPT_BYTES:]
        if leaves_after is not None and received >= leaves_after:
            return


async def _write(request: WireRequest, writer: asyncio.StreamWriter, rng: random.Random) -> None:
    match request.delivery:
        case Delivery.CHUNKED | Delivery.BAD_CHUNKS:
            await _write_chunks(request, writer, rng)
        case Delivery.CUT:
            data = _with_length(request)
            writer.write(data[: rng.randrange(len(data))])
            writer.write_eof()
        case Delivery.SLOW:
            data, size = _with_length(request), rng.choice((1, 7, 100))
            for start in range(0, min(len(data), 20 * size), size):
                writer.write(data[start : start + size])
                await asyncio.sleep(SLOW_PAUSE_S)
            writer.write(data[20 * size :])
        case Delivery.PIPELINED:
            first = request.head.replace(b"connection: close", b"connection: keep-alive")
            data = _with_length(WireRequest(first, request.body)) * rng.randint(1, 3)
            writer.write(data + _with_length(request))
        case Delivery.HALF_CLOSED:
            writer.write(_with_length(request))
            writer.write_eof()
        case _:
            writer.write(_with_length(request))
    await writer.drain()


async def _write_chunks(
    request: WireRequest, writer: asyncio.StreamWriter, rng: random.Random
) -> None:
    writer.write(request.head + b"transfer-encoding: chunked\r\n\r\n")
    size = rng.choice((1 + len(request.body) // 50, 1 + len(request.body) // 3, 2**16))
    for start in range(0, len(request.body), size):
        part = request.body[start : start + size]
        length = b"%x" % len(part)
        if request.delivery is Delivery.BAD_CHUNKS and rng.random() < 0.3:
            length = rng.choice((b"-1", b"zz", b"f" * 40, b"", length + b";" + b"x" * 70_000))
        writer.write(length + b"\r\n" + part + b"\r\n")
        await writer.drain()
    writer.write(b"0\r\n\r\n")


def _with_length(request: WireRequest) -> bytes:
    length = b"content-length: %d\r\n\r\n" % len(request.body)
    return request.head + (b"\r\n" if request.is_malformed else length) + request.body
