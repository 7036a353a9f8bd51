"""The client over HTTP, the same for every engine: streamed completions, a connection each."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from bench.gpu.peers.checkpoint.numbers import tokens_of
from bench.gpu.peers.loads import ScheduledRequest

DATA, DONE = b"data:", b"[DONE]"
LINE_BYTES = 1 << 20
"""Of one event at most."""


class ServerRefused(Exception):
    """A server answered something else than a stream of tokens; the text has its answer."""


async def complete(
    port: int, model: str, request: ScheduledRequest
) -> tuple[list[int], float | None]:
    """Return the tokens of an answer, and the seconds until the first arrived.

    Raises:
        ServerRefused: the status is not 200, or the stream has an error.
        OSError: the connection failed.
        ValueError: a text has something else than numbers.
    """
    began_s, first_s, text = time.perf_counter(), None, ""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=LINE_BYTES)
    try:
        writer.write(_request(model, request))
        await writer.drain()
        status = await reader.readline()
        if b" 200 " not in status:
            answer = (await reader.read()).decode(errors="replace").splitlines() or [""]
            raise ServerRefused(f"{status.decode().strip()}: {answer[-1][:300]}")
        async for event in _events(reader):
            if piece := event["choices"][0].get("text", "") if event.get("choices") else "":
                first_s = time.perf_counter() - began_s if first_s is None else first_s
                text += piece
    finally:
        writer.close()
    return tokens_of(text), first_s


def _request(model: str, request: ScheduledRequest) -> bytes:
    document = {
        "model": model,
        "prompt": [*request.prompt],
        "max_tokens": request.tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    body = json.dumps(document).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """Yield events; skip the sizes of chunks and the empty lines between them."""
    while line := await reader.readline():
        if not line.startswith(DATA):
            continue
        content = line[len(DATA) :].strip()
        if content == DONE:
            return
        event: dict[str, Any] = json.loads(content)
        if "error" in event:
            raise ServerRefused(str(event["error"])[:300])
        yield event
