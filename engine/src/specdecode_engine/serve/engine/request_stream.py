"""The outputs of requests that belong together, as the event loop gets them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from specdecode_engine.batch.request import Output, Request


class RequestStream:
    """The outputs of requests that belong together, as they come.

    `accepted` is done when the core has queued them, `submitted` when the newest engine has queued
    what the engines that were lost have left. `breaks` counts those engines.
    """

    def __init__(
        self, requests: tuple[Request, ...], accepted: asyncio.Future[object], retries: int
    ) -> None:
        self.requests = requests
        self.accepted = self.submitted = accepted
        self.retries = retries
        self.breaks = 0
        self.running = {request.request_id for request in requests}
        self._token_ids: dict[str, list[int]] = {each: [] for each in self.running}  # unfinished
        self._events: deque[Output | Exception] = deque()
        self._loop = accepted.get_loop()  # asking for the running one is a system call
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._arrival: asyncio.Future[None] | None = None

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while self.running:
            while not self._events:
                self._arrival = self._loop.create_future()
                await self._arrival
            event = self._events.popleft()
            if isinstance(event, Exception):
                raise event
            if event.request_id not in self.running:
                continue  # the core produced it before `abort` reached it
            if event.finish_reason is not None:
                self.running.discard(event.request_id)
            return event
        raise StopAsyncIteration

    def put(self, event: Output | Exception) -> None:
        """Receive an output of one of the requests, or the error that ends the stream."""
        if isinstance(event, Exception):
            settle(self.accepted, event)
        elif event.finish_reason is not None:
            self._token_ids.pop(event.request_id, None)
        else:
            self._token_ids[event.request_id] += event.token_ids
        self._events.append(event)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def uses(self, adapter: str) -> bool:
        """Whether a request of the stream has an adapter."""
        return any(each.adapter == adapter for each in self.requests)

    def rest(self) -> tuple[Request, ...]:
        """Return what another engine is to continue, from the tokens so far."""
        if self.breaks > self.retries:
            return ()
        left = self.running & self._token_ids.keys()
        mine = [each for each in self.requests if each.request_id in left]
        return tuple(each.resumed(self._token_ids[each.request_id]) for each in mine)


def settle(future: asyncio.Future[object], error: Exception | None, value: object = None) -> None:
    """Resolve a future, unless it is done: cancelled, or failed before its result came."""
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
