"""One engine's part of a call: the request, its events, and what of them the client gets."""

import asyncio
from collections.abc import Callable
from typing import Final

import aiohttp

from specdecode_api.internal_api import StreamEvent
from specdecode_router.call import BreakReason, Call
from specdecode_router.client_request import EVENT_STREAM, JSON, ClientRequest, ClientResponse
from specdecode_router.engines import RoutedEngine
from specdecode_router.routing.stalls import StepTimes
from specdecode_router.upstream import EngineLost, EventReader, Refusal, UpstreamClient, lost

RETRY_AFTER_SECONDS: Final = 1
RESPONSIVE_SECONDS: Final = 4.0
"""An engine that answered a poll so lately is alive; a call that it has not accepted waits."""

_REASONS: Final = {"draining": BreakReason.DRAINING}


class EngineAttempt:
    """A call on one engine.

    Args:
        on_accepted: called once, when the engine has accepted the call.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        engine: RoutedEngine,
        call: Call,
        response: ClientResponse,
        on_accepted: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self.engine = engine
        self.call = call
        self._response = response
        self._on_accepted = on_accepted
        self._clock = clock
        self._times = StepTimes(clock())
        self._is_accepted = self._is_writing = False
        self._scope: asyncio.Timeout | None = None

    async def run(self, client: UpstreamClient, request: ClientRequest) -> None:
        """Run the call to its end.

        Raises:
            EngineLost: the engine did not end it; what the client got is in the call.
            Refusal: the engine does not accept it.
        """
        try:
            async with asyncio.timeout(None) as self._scope:
                try:
                    upstream = await client.open(
                        self.engine.address, self.call, request.body, request.headers
                    )
                    async with upstream:
                        await self._read(upstream)
                finally:
                    self._scope = None
        except TimeoutError:
            detail = f"no event for {self._clock() - self._times.latest_s:.1f} s"
            raise EngineLost(BreakReason.STALLED, detail) from None
        except (aiohttp.ClientError, OSError) as error:
            raise lost(error) from None

    def is_stalled(self, now_s: float) -> bool:
        """Whether the engine has been silent for too long; not where a client reads slowly."""
        if self._is_writing or not self._times.is_stalled(now_s):
            return False
        return self._is_accepted or now_s - self.engine.polled_s > RESPONSIVE_SECONDS

    def give_up(self) -> None:
        """End a stalled attempt, if it has not ended: `run` raises."""
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.reschedule(asyncio.get_running_loop().time())

    async def _read(self, upstream: aiohttp.ClientResponse) -> None:
        reader, content = EventReader(), upstream.content
        while data := await content.readany():
            events = reader.feed(data)
            if not events:
                self._times.beat(self._clock())
                continue
            has_ended, failure = await self._pass_on(events)
            if failure is not None:
                raise failure
            if has_ended:
                if not self.call.is_stream:
                    await self._pass_whole(content, reader.rest)
                self.call.is_ended = True
                return
        raise EngineLost(BreakReason.LOST, "the engine ended the stream too early")

    async def _pass_on(self, events: list[StreamEvent]) -> tuple[bool, EngineLost | None]:
        """Take over events in order and write what the client gets of them.

        Returns:
            Whether the call has ended, and the error that ended it on this engine.
        """
        call, public = self.call, []
        has_ended, failure = False, None
        for event in events:
            if "choice" in event:
                self._times.step(self._clock())
            elif (start := event.get("start")) is not None:
                call.begin(start)
                self._is_accepted = True
                self._on_accepted()
                if call.is_stream:
                    await self._response.begin(200, EVENT_STREAM)
            elif (error := event.get("error")) is not None:
                code = str(error.get("code"))
                reason = _REASONS.get(code, BreakReason.FAILED)
                failure = EngineLost(reason, str(error.get("message")), error)
                break
            call.add(event)
            if text := event.get("public"):
                public.append(text)
            has_ended = event.get("end", False)
        if public and has_ended:
            self._response.keep_last("".join(public).encode())
        elif public:
            self._is_writing = True
            await self._response.write("".join(public).encode())
            self._is_writing = False
        return has_ended, failure

    async def _pass_whole(self, content: aiohttp.StreamReader, rest: bytes) -> None:
        """Write a response in one piece, once all of it is here."""
        parts = [rest]
        while data := await content.readany():
            parts.append(data)
            self._times.beat(self._clock())
        await self._response.begin(200, [*JSON, length_header(parts)])
        self._response.keep_last(b"".join(parts))


def length_header(parts: list[bytes]) -> tuple[bytes, bytes]:
    return b"content-length", str(sum(map(len, parts))).encode()


async def write_refusal(response: ClientResponse, refusal: Refusal, path: str) -> None:
    """Answer a call of a path with an engine's refusal."""
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if refusal.is_busy else {}
    headers |= refusal.headers
    pairs = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    body = refusal.body_for(path)
    await response.begin(refusal.status, [*pairs, length_header([body])])
    await response.write(body)
