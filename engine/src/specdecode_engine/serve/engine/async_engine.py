"""The engine thread as seen from the event loop: requests, their outputs, and their end."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.request import Output, Request
from specdecode_engine.serve.engine.core import Core, EngineFailed
from specdecode_engine.serve.engine.engine_thread import EngineThread, OnResult
from specdecode_engine.stats.snapshot import CoreSnapshot

SNAPSHOT_WAIT_SECONDS = 0.5
"""How long a reader waits for a snapshot. A prefill of a long prompt, a compilation or a stalled
device may take longer: the reader then gets the latest one."""


class RequestStream:
    """The outputs of requests that belong together, as they come; leaving aborts the unfinished.

    Entering waits until the core has accepted all requests, and raises the reason if it refuses
    one; it then runs none.
    """

    def __init__(self, engine: "AsyncEngine", requests: tuple[Request, ...]) -> None:
        self.requests = requests
        self._engine = engine
        self._running = {request.request_id for request in requests}
        self._accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue: asyncio.Queue[Output | Exception] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._engine.register(self)
        try:
            await self._accepted
        except BaseException:
            self._engine.unregister(self, self._running)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._engine.unregister(self, self._running)

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while self._running:
            event = await self._queue.get()
            if isinstance(event, Exception):
                raise event
            if event.request_id not in self._running:
                continue  # the core produced it before `abort` reached it
            if event.finish_reason is not None:
                self._running.discard(event.request_id)
            return event
        raise StopAsyncIteration

    def abort(self, request_id: str) -> None:
        """Abort one request; further outputs of it are dropped."""
        self._running.discard(request_id)
        self._engine.abort((request_id,))

    def set_result(self, refusal: Exception | None) -> None:
        """Receive the core's decision to accept or refuse the requests."""
        _settle(self._accepted, refusal)

    def put(self, output: Output) -> None:
        """Receive an output of one of the requests."""
        self._queue.put_nowait(output)

    def fail(self, error: Exception) -> None:
        """End the stream with an error."""
        _settle(self._accepted, error)
        self._queue.put_nowait(error)


class AsyncEngine:
    """Everything that coroutines may ask of the core. Lives on one event loop.

    Args:
        load: builds the core, on the engine thread.
        on_ready: called on the event loop when the core can be used.
        on_failure: called on the event loop when loading or a step raised.
        clock: seconds, monotonic.
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
        self._reloads: set[asyncio.Future[None]] = set()
        self._snapshot_taken: asyncio.Future[None] | None = None
        self._thread = EngineThread(
            load,
            on_ready=lambda: self._post(on_ready),
            on_outputs=lambda outputs: self._post(lambda: self._dispatch(outputs)),
            on_failure=lambda error: self._post(lambda: self._fail(error)),
            clock=clock,
        )

    def start(self) -> None:
        """Start loading."""
        self._thread.start()

    async def close(self, timeout_s: float) -> bool:
        """End the thread; false when it is still busy after `timeout_s`."""
        self._thread.stop()
        return await asyncio.to_thread(self._thread.join, timeout_s)

    @property
    def context_length(self) -> int:
        """Maximum tokens of one request, prompt and generated tokens together."""
        return self._thread.context_length

    @property
    def snapshot(self) -> CoreSnapshot:
        """The latest snapshot that was taken; `refresh_snapshot` takes one."""
        return self._thread.snapshot

    def snapshot_age(self) -> float:
        """Seconds since the latest snapshot was taken."""
        return self._clock() - self._thread.snapshot_s

    async def refresh_snapshot(self) -> CoreSnapshot:
        """Return the state and totals as of now.

        They are the latest known ones if the engine does not answer within `SNAPSHOT_WAIT_SECONDS`,
        and before it is loaded and after it ended. Concurrent callers share one snapshot. It counts
        every output that was delivered before the call, because both are delivered in order.
        """
        if self._thread.is_serving:
            if self._snapshot_taken is None or self._snapshot_taken.done():
                taken = self._snapshot_taken = self._loop.create_future()
                self._thread.request_snapshot(lambda: self._post(lambda: _settle(taken, None)))
            await asyncio.wait({self._snapshot_taken}, timeout=SNAPSHOT_WAIT_SECONDS)
        return self._thread.snapshot

    def is_alive(self) -> bool:
        """Whether the thread runs and has not failed."""
        return self._failure is None and self._thread.is_alive()

    def step_seconds(self) -> float:
        """How long the current step has been running; 0 between steps."""
        return self._thread.step_seconds()

    def stream(self, requests: tuple[Request, ...]) -> RequestStream:
        """Run requests that belong together; enter the result with `async with`."""
        return RequestStream(self, requests)

    def fail_all(self, error: Exception) -> None:
        """End every stream with an error; leaving the streams aborts their requests."""
        for stream in set(self._streams.values()):
            stream.fail(error)

    async def reload(self, table: RangeTable) -> None:
        """Choose draft steps by another table from the next step on.

        Raises:
            TableRefused: it needs what was not prepared at start; the old one stays.
            EngineFailed: the core has failed.
        """
        if self._failure is not None:
            raise self._failure
        done: asyncio.Future[None] = self._loop.create_future()
        self._reloads.add(done)
        self._thread.reload(table, self._on_loop(lambda error: _settle(done, error)))
        try:
            await done
        finally:
            self._reloads.discard(done)

    def abort(self, request_ids: tuple[str, ...]) -> None:
        """Have the core drop requests."""
        self._thread.abort(request_ids)

    def register(self, stream: RequestStream) -> None:
        """Submit the requests of a stream and deliver their outputs to it."""
        if self._failure is not None:
            stream.set_result(self._failure)
            return
        for request in stream.requests:
            self._streams[request.request_id] = stream
        self._thread.submit(stream.requests, self._on_loop(stream.set_result))

    def unregister(self, stream: RequestStream, running: set[str]) -> None:
        """Stop deliveries to a stream and abort the requests that still run."""
        for request in stream.requests:
            self._streams.pop(request.request_id, None)
        if running:
            self.abort(tuple(sorted(running)))

    def _on_loop(self, on_result: OnResult) -> OnResult:
        return lambda error: self._post(lambda: on_result(error))

    def _post(self, function: Callable[[], None]) -> None:
        # The loop may be closed when a stuck step ends after the server has left.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _dispatch(self, outputs: list[Output]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)

    def _fail(self, error: Exception) -> None:
        self._failure = error if isinstance(error, EngineFailed) else EngineFailed(str(error))
        self.fail_all(self._failure)
        for done in self._reloads:
            _settle(done, self._failure)
        if self._snapshot_taken is not None:
            _settle(self._snapshot_taken, None)
        self._on_failure(error)


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    """Resolve a future, unless it is done: cancelled, or failed before its result came."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
