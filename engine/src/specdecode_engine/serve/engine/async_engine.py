"""The engine thread as seen from the event loop: requests, their outputs, and their end."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from specdecode_engine.adaptive.policy import TableRefused
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.request import Output, Request, RequestRefused
from specdecode_engine.serve.engine.core import Core, EngineFailed
from specdecode_engine.serve.engine.engine_thread import EngineThread
from specdecode_engine.stats.snapshot import CoreSnapshot

log = logging.getLogger(__name__)

SNAPSHOT_WAIT_SECONDS = 0.5
"""How long a reader waits for a snapshot. A prefill of a long prompt, a compilation or a stalled
device may take longer: the reader then gets the latest one."""


class RequestStream:
    """The outputs of requests that belong together, as they come."""

    def __init__(self, requests: tuple[Request, ...], accepted: asyncio.Future[None]) -> None:
        self.running = {request.request_id for request in requests}
        self.accepted = accepted
        self._queue: asyncio.Queue[Output | Exception] = asyncio.Queue()

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while self.running:
            event = await self._queue.get()
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
            _settle(self.accepted, event)
        self._queue.put_nowait(event)


class AsyncEngine:
    """What coroutines may ask of the core. Lives on one event loop.

    `load` runs on the engine thread, `on_ready` and `on_failure` on the event loop.
    """

    def __init__(
        self,
        load: Callable[[], Core],
        on_ready: Callable[[], None],
        on_failure: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._clock = clock
        self._failure: Exception | None = None
        self._streams: dict[str, RequestStream] = {}
        self._calls: set[asyncio.Future[None]] = set()
        self._snapshot_taken: asyncio.Future[None] | None = None
        self._thread = EngineThread(
            load,
            on_ready=lambda: self._post(on_ready),
            on_outputs=lambda outputs: self._post(lambda: self._dispatch(outputs)),
            on_failure=lambda error: self._post(lambda: self.fail(error)),
            clock=clock,
        )

    def start(self) -> None:
        self._thread.start()

    async def close(self, timeout_s: float) -> bool:
        self._thread.stop()
        return await asyncio.to_thread(self._thread.join, timeout_s)

    @property
    def context_length(self) -> int:
        return self._thread.context_length

    @property
    def snapshot(self) -> CoreSnapshot:
        """The latest snapshot that was taken; `refresh_snapshot` takes one."""
        return self._thread.snapshot

    def snapshot_age(self) -> float:
        return self._clock() - self._thread.snapshot_s

    async def refresh_snapshot(self) -> CoreSnapshot:
        """Return the state and totals as of now.

        They are the latest known ones if the engine does not answer within `SNAPSHOT_WAIT_SECONDS`,
        and before it is loaded and after it ended. Concurrent callers share one snapshot. It counts
        every output that was delivered before the call, because both are delivered in order.
        """
        if self._thread.is_serving:
            if self._snapshot_taken is None or self._snapshot_taken.done():
                self._snapshot_taken = self._call(self._thread.take_snapshot)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._snapshot_taken), SNAPSHOT_WAIT_SECONDS)
        return self._thread.snapshot

    def is_alive(self) -> bool:
        return self._failure is None and self._thread.is_alive()

    def step_seconds(self) -> float:
        return self._thread.step_seconds()

    def latest_step(self) -> str:
        return self._thread.latest_step()

    @asynccontextmanager
    async def stream(self, requests: tuple[Request, ...]) -> AsyncIterator[RequestStream]:
        """Run requests that belong together, all or none; leaving aborts the unfinished.

        Raises:
            RequestRefused: the core refuses one of them.
            EngineFailed: the core has failed.
        """
        accepted = self._call(lambda core: _submit(core, requests))
        stream = RequestStream(requests, accepted)
        self._streams |= dict.fromkeys(stream.running, stream)
        try:
            await accepted
            yield stream
        finally:
            for request in requests:
                del self._streams[request.request_id]
            if stream.running:
                self.abort(stream, sorted(stream.running))

    def abort(self, stream: RequestStream, request_ids: Sequence[str]) -> None:
        """Have the core drop requests of a stream; further outputs of them are dropped."""
        stream.running -= set(request_ids)
        self._thread.put(lambda core: _abort(core, request_ids))

    def fail_all(self, error: Exception) -> None:
        """End every stream with an error; leaving the streams aborts their requests."""
        for stream in set(self._streams.values()):
            stream.put(error)

    async def reload(self, table: RangeTable) -> None:
        """Choose draft steps by another table from the next step on.

        Raises:
            TableRefused: it needs what was not prepared at start; the old one stays.
            EngineFailed: the core has failed.
        """
        await self._call(lambda core: core.reload(table))

    async def between_steps(self, function: Callable[[], None]) -> None:
        """Run a function on the engine's thread between two steps; raises `EngineFailed`."""
        await self._call(lambda core: function())

    def _call(self, command: Callable[[Core], None]) -> asyncio.Future[None]:
        """Run a command between two steps; the future has the reason if the core refuses it."""
        done: asyncio.Future[None] = self._loop.create_future()
        if self._failure is not None:
            done.set_exception(self._failure)
            return done
        self._calls.add(done)
        done.add_done_callback(self._calls.discard)

        def run(core: Core) -> None:
            error = None
            try:
                command(core)
            except (RequestRefused, TableRefused, EngineFailed) as refusal:
                error = refusal
            self._post(lambda: _settle(done, error))

        self._thread.put(run)
        return done

    def _post(self, function: Callable[[], None]) -> None:
        # The loop may be closed when a stuck step ends after the server has left.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)

    def fail(self, error: Exception) -> None:
        """End every stream and call, and all to come, with the first error."""
        if self._failure is not None:
            return
        self._failure = error if isinstance(error, EngineFailed) else EngineFailed(str(error))
        self.fail_all(self._failure)
        if self._snapshot_taken is not None:
            _settle(self._snapshot_taken, None)
        for call in tuple(self._calls):
            _settle(call, self._failure)
        self._on_failure(error)


def _submit(core: Core, requests: tuple[Request, ...]) -> None:
    """Queue all of the requests, or none of them."""
    for index, request in enumerate(requests):
        try:
            core.submit(request)
        except Exception as error:
            _abort(core, [accepted.request_id for accepted in requests[:index]])
            if isinstance(error, RequestRefused):
                raise
            log.exception("the engine core failed to accept a request")
            raise EngineFailed("the engine core failed to accept the request") from error


def _abort(core: Core, request_ids: Sequence[str]) -> None:
    for request_id in request_ids:
        core.abort(request_id)


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    """Resolve a future, unless it is done: cancelled, or failed before its result came."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
