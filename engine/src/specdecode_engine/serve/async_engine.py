"""The event loop's face of the engine thread: calls, their outputs, and their end."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

from specdecode_engine.depth.ranges import DepthTable
from specdecode_engine.metrics import CoreSnapshot
from specdecode_engine.request import Output, Request
from specdecode_engine.serve.core import Core, EngineFailed
from specdecode_engine.serve.engine_thread import (
    Abort,
    EngineThread,
    Event,
    Reload,
    Stop,
    Submit,
    Verdict,
)


class Generation:
    """The outputs of one call's requests, as they come; leaving it aborts what still runs.

    Entering raises what the core refused the call for. All requests of a call are taken or none.
    """

    def __init__(self, engine: "AsyncEngine", requests: tuple[Request, ...]) -> None:
        self.requests = requests
        self._engine = engine
        self._running = {request.request_id for request in requests}
        self._admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrived: asyncio.Queue[Output | Exception] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._engine.enter(self)
        try:
            await self._admitted
        except BaseException:
            self._engine.leave(self, self._running)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._engine.leave(self, self._running)

    def __aiter__(self) -> AsyncIterator[Output]:
        return self

    async def __anext__(self) -> Output:
        while self._running:
            event = await self._arrived.get()
            if isinstance(event, Exception):
                raise event
            if event.request_id not in self._running:
                continue  # it arrived before the abort of `finish` did
            if event.finish_reason is not None:
                self._running.discard(event.request_id)
            return event
        raise StopAsyncIteration

    def finish(self, request_id: str) -> None:
        """Want nothing more of one request: abort it and drop what still arrives of it."""
        self._running.discard(request_id)
        self._engine.abort((request_id,))

    def judge(self, refusal: Exception | None) -> None:
        """Take the core's verdict on the call."""
        if self._admitted.done():
            return
        if refusal is None:
            self._admitted.set_result(None)
        else:
            self._admitted.set_exception(refusal)

    def arrive(self, output: Output) -> None:
        """Take an output of one of the requests."""
        self._arrived.put_nowait(output)

    def fail(self, error: Exception) -> None:
        """End the call with an error, whatever it has so far."""
        self.judge(error)
        self._arrived.put_nowait(error)


class AsyncEngine:
    """Everything asyncio may ask of the core. Lives on one event loop.

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
        self._failure: Exception | None = None
        self._generations: dict[str, Generation] = {}
        self._reloads: set[Future[None]] = set()
        self._thread = EngineThread(
            load,
            on_ready=lambda: self._post(on_ready),
            on_events=lambda events: self._post(lambda: self._dispatch(events)),
            on_failure=lambda error: self._post(lambda: self._fail(error)),
            clock=clock,
        )

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    async def close(self, timeout_s: float) -> bool:
        """End the thread; false when it is still busy after `timeout_s`."""
        self._thread.send(Stop())
        return await asyncio.to_thread(self._thread.join, timeout_s)

    @property
    def context_length(self) -> int:
        """Tokens, prompt and answer, that one request may reach."""
        return self._thread.context_length

    @property
    def snapshot(self) -> CoreSnapshot:
        """The core's numbers after its latest step."""
        return self._thread.snapshot

    def is_alive(self) -> bool:
        """Whether the thread runs and nothing went wrong in it."""
        return self._failure is None and self._thread.is_alive()

    def step_seconds(self) -> float:
        """For how long the present step has been running; 0 between steps."""
        return self._thread.step_seconds()

    def generation(self, requests: Sequence[Request]) -> Generation:
        """Run the requests of one call; enter the result with `async with`."""
        return Generation(self, tuple(requests))

    async def generate(self, request: Request) -> AsyncIterator[Output]:
        """Run one request; closing the iterator aborts it."""
        async with self.generation([request]) as outputs:
            async for output in outputs:
                yield output

    def end_all(self, error: Exception) -> None:
        """End every call with an error; what they ran is aborted as they unwind."""
        for generation in set(self._generations.values()):
            generation.fail(error)

    async def reload(self, table: DepthTable) -> None:
        """Choose depths by another table from the next round on.

        Raises:
            TableRefused: it needs what was not prepared at start; the old one stays.
            EngineFailed: the core is gone.
        """
        if self._failure is not None:
            raise self._failure
        done: Future[None] = Future()
        self._reloads.add(done)
        self._thread.send(Reload(table, done))
        try:
            await asyncio.wrap_future(done)
        finally:
            self._reloads.discard(done)

    def abort(self, request_ids: tuple[str, ...]) -> None:
        """Have the core forget requests."""
        self._thread.send(Abort(request_ids))

    def enter(self, generation: Generation) -> None:
        """Register a call and pass its requests to the core."""
        if self._failure is not None:
            generation.judge(self._failure)
            return
        for request in generation.requests:
            self._generations[request.request_id] = generation
        self._thread.send(Submit(generation.requests))

    def leave(self, generation: Generation, running: set[str]) -> None:
        """Forget a call and abort what it still runs."""
        for request in generation.requests:
            self._generations.pop(request.request_id, None)
        if running:
            self.abort(tuple(sorted(running)))

    def _post(self, function: Callable[[], None]) -> None:
        # The loop may be gone when a stuck step ends after the server has left.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function)

    def _dispatch(self, events: list[Event]) -> None:
        for event in events:
            generation = self._generations.get(event.request_id)
            if generation is None:
                continue
            if isinstance(event, Verdict):
                generation.judge(event.refusal)
            else:
                generation.arrive(event)

    def _fail(self, error: Exception) -> None:
        self._failure = error if isinstance(error, EngineFailed) else EngineFailed(str(error))
        self.end_all(self._failure)
        for done in self._reloads:
            if not done.done():
                done.set_exception(self._failure)
        self._on_failure(error)
