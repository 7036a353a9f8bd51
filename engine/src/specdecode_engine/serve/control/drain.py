"""Answers `specdecode-engine drain` and `undrain` on the engine's Unix socket."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from specdecode_engine.drain_socket import DRAIN, MAX_LINE_BYTES, UNDRAIN, DrainListener
from specdecode_server.lifecycle import ServerLifecycle

log = logging.getLogger(__name__)

READ_SECONDS = 5.0


@asynccontextmanager
async def answering_drain(
    lifecycle: ServerLifecycle, listener: DrainListener
) -> AsyncIterator[None]:
    """Answer commands while the body runs; connections end with the engine."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                await _answer(lifecycle, reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_unix_server(answer, sock=listener.sock, limit=MAX_LINE_BYTES)
    try:
        yield
    finally:
        server.close()


async def _answer(
    lifecycle: ServerLifecycle, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        line = await asyncio.wait_for(reader.readline(), READ_SECONDS)
    except TimeoutError:
        line = b""
    except ValueError:
        line = b"a line that is too long"
    if not line:
        return  # a probe of whether the engine runs
    reply = _execute(lifecycle, line)
    await _send(writer, reply)
    if reply.get("status") == "draining":
        await _wait_for_end(lifecycle, reader)
        if lifecycle.has_ended:
            await _send(writer, {"status": "ended"})


def _execute(lifecycle: ServerLifecycle, line: bytes) -> dict[str, object]:
    try:
        request = json.loads(line)
        command = request["command"]
    except (ValueError, TypeError, LookupError, RecursionError):
        command = None
    match command:
        case "drain":
            log.info("draining: not ready, and serving what still comes")
            lifecycle.drain()
            return {"status": "draining", "running_requests": lifecycle.running_requests}
        case "undrain":
            if not lifecycle.undrain():
                return {"error": "the engine is stopping and cannot serve again; start a new one"}
            log.info("draining was undone")
            return {"status": "serving", "running_requests": lifecycle.running_requests}
    known = json.dumps([{"command": each} for each in (DRAIN, UNDRAIN)])
    return {"error": f"not a command: send one line of JSON, one of {known}"}


async def _wait_for_end(lifecycle: ServerLifecycle, reader: asyncio.StreamReader) -> None:
    """Wait until the engine stops or fails, or the client closes the connection."""
    waits = {asyncio.create_task(lifecycle.wait_for_end()), asyncio.create_task(reader.read(1))}
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _send(writer: asyncio.StreamWriter, reply: dict[str, object]) -> None:
    writer.write(json.dumps(reply).encode() + b"\n")
    await writer.drain()
