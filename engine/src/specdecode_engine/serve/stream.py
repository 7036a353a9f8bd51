"""How an admitted call is answered: in one piece or as events, until its client has gone."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from specdecode_engine.serve import errors
from specdecode_engine.serve.answer import Answer, answering
from specdecode_engine.serve.call import Call
from specdecode_engine.serve.service import Service

log = logging.getLogger(__name__)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class Form(Protocol):
    """One API's way to write an answer."""

    async def whole(self, answer: Answer) -> dict[str, object]:
        """Return the answer in one piece."""

    def chunks(self, answer: Answer) -> AsyncIterator[dict[str, object]]:
        """Yield the answer as it comes."""


class Reply(Response):
    """Runs a call and writes its answer; if the client disconnects, the call is aborted.

    The headers of a stream are sent once the core has taken the call, so that a refusal has its
    own status.
    """

    def __init__(self, service: Service, call: Call, form: Form, is_stream: bool) -> None:
        super().__init__()
        self._service = service
        self._call = call
        self._form = form
        self._is_stream = is_stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Speak ASGI."""
        work = self._stream(send) if self._is_stream else self._whole(scope, receive, send)
        if not await _until_gone(receive, work):
            log.debug("client gone, call %s aborted", self._call.call_id)

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with answering(self._service, self._call) as answer:
            content = await self._form.whole(answer)
            await JSONResponse(content)(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        async with answering(self._service, self._call) as answer:
            await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
            try:
                async for chunk in self._form.chunks(answer):
                    await _send_event(send, _json(chunk))
                await _send_event(send, b"[DONE]")
            except Exception as error:
                self._service.metrics.count_error(errors.from_exception(error).status)
                await _send_event(send, _json(_failure(error)))
            await send({"type": "http.response.body", "body": b""})


async def _until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` to its end, or cancel it when the client disconnects and return false."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_event(send: Send, data: bytes) -> None:
    body = b"data: " + data + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _json(content: dict[str, object]) -> bytes:
    return _encode(content).encode()


def _failure(error: Exception) -> dict[str, object]:
    answer = errors.from_exception(error)
    if answer.code == "internal_error":
        log.error("a stream failed", exc_info=error)
    return answer.body()
