"""One engine's part of a call to another runtime: the request, and its answer as it comes."""

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from specdecode_router.attempt import length_header
from specdecode_router.call import BreakReason
from specdecode_router.client_request import ClientRequest, ClientResponse
from specdecode_router.engines import RoutedEngine
from specdecode_router.upstream import (
    MAX_REFUSAL_BYTES,
    EngineLost,
    Refusal,
    is_tried_elsewhere,
    lost,
)
from specdecode_server.middleware import KEEP_ALIVE_SECONDS

SILENT_POLLS: Final = 3
SILENT_SECONDS: Final = 10.0
"""A call is given up if its engine has answered none of three polls and the call nothing for so
long: its stream cannot be continued, so that a busy engine gets more time than for new requests."""
RELAYED_HEADERS: Final = ("content-type", "retry-after", "cache-control")

Headers = list[tuple[bytes, bytes]]


class PlainAttempt:
    """A call on one engine; `has_sent` is whether the client has got anything of its answer.

    Args:
        on_accepted: called once, when the answer begins to arrive.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: RoutedEngine,
        request: ClientRequest,
        response: ClientResponse,
        on_accepted: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.engine = engine
        self.has_sent = False
        self._request = request
        self._response = response
        self._on_accepted = on_accepted
        self._clock = clock
        self._heard_s = clock()
        self._is_writing = False
        self._scope: asyncio.Timeout | None = None

    async def run(self, session: aiohttp.ClientSession) -> None:
        """Pass the call to the engine and its answer to the client.

        Raises:
            Refusal: the engine is busy, failed before it answered, or its answer is not a stream
                although one has begun.
            EngineLost: it did not end its answer.
        """
        try:
            async with asyncio.timeout(None) as self._scope:
                try:
                    await self._send(session)
                finally:
                    self._scope = None
        except aiohttp.ClientError as error:
            raise lost(error) from None
        except TimeoutError:
            detail = f"no answer to polls, and none for {self._clock() - self._heard_s:.1f} s"
            raise EngineLost(BreakReason.STALLED, detail) from None
        except OSError as error:
            raise lost(error) from None

    def is_silent(self, now_s: float) -> bool:
        """Whether the engine answers neither the call nor polls; not where a client reads slowly.

        An engine that refuses polls still ends its calls: it stops, or its kernel closes them.
        """
        is_heard = now_s - self._heard_s <= SILENT_SECONDS
        return self.engine.silent_polls >= SILENT_POLLS and not is_heard and not self._is_writing

    def give_up(self) -> None:
        """End the attempt, if it has not ended: `run` raises."""
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.reschedule(asyncio.get_running_loop().time())

    async def _send(self, session: aiohttp.ClientSession) -> None:
        request = self._request
        async with session.post(
            self.engine.address.url(request.path),
            data=request.body,
            headers=request.headers,
            allow_redirects=False,
        ) as upstream:
            kept = {
                name: upstream.headers[name] for name in RELAYED_HEADERS if name in upstream.headers
            }
            if is_tried_elsewhere(upstream.status):
                data = await upstream.content.read(MAX_REFUSAL_BYTES)
                raise Refusal(upstream.status, kept, data)
            headers = [(name.encode(), text.encode("latin-1")) for name, text in kept.items()]
            if upstream.content_type == "text/event-stream":
                await self._pass_stream(upstream, [*headers, (b"x-accel-buffering", b"no")])
                return
            data = await upstream.read()
            if self._response.status is not None:
                raise Refusal(upstream.status, kept, data)
            self._on_accepted()
            await self._response.begin(upstream.status, [*headers, length_header([data])])
            self._response.keep_last(data)

    async def _pass_stream(self, upstream: aiohttp.ClientResponse, headers: Headers) -> None:
        """Write a stream as it comes.

        Its headers come long before its first event. The client gets them with that event, so that
        until then an error has its status; after 15 s it gets them alone, so that comments keep
        the connection alive.
        """
        content = upstream.content
        try:
            async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                data = await content.readany()
        except TimeoutError:
            await self._response.begin(upstream.status, headers)
            data = await content.readany()
        self._on_accepted()
        await self._response.begin(upstream.status, headers)
        while data:
            self._heard_s = self._clock()
            self.has_sent = self._is_writing = True
            await self._response.write(data)
            self._is_writing = False
            data = await content.readany()
