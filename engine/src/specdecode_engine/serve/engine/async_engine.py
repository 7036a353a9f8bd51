"""The engine as seen from the event loop: requests, their outputs, and their end."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.adapters import AdapterFacts
from specdecode_engine.batch.request import Output, Request
from specdecode_engine.grammar import TokenBytes
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.serve.engine.core import EngineFailed
from specdecode_engine.serve.engine.engine_thread import one_line
from specdecode_engine.serve.engine.messages import (
    Abort,
    Command,
    Connect,
    Ended,
    EngineCall,
    Event,
    ExchangeDraft,
    Failed,
    LoadAdapter,
    Lost,
    PrepareGrammars,
    Progressed,
    Reload,
    Reply,
    Started,
    StepOutputs,
    Submit,
    TakeSnapshot,
    UnloadAdapter,
)
from specdecode_engine.serve.engine.request_stream import RequestStream, settle
from specdecode_engine.stats.snapshot import CoreSnapshot

log = logging.getLogger(__name__)

RETRIES = 2
"""How often a call may lose its engine, as with a router; then it ends with an error.

Unlike there, new tokens do not reset the count: a call that ends an engine after every few tokens
would end the server with the fourth.
"""
SNAPSHOT_WAIT_SECONDS = 0.5
"""How long a reader waits for a snapshot. A prefill of a long prompt, a compilation or a stalled
device may take longer: the reader then gets the latest one."""


class PendingCall(NamedTuple):
    """A command without a reply so far."""

    command: Command
    done: asyncio.Future[object]


class AsyncEngine:
    """What coroutines may ask of the engine. Lives on one event loop.

    Until the engine is prepared, commands wait; they wait again after it was lost.

    Args:
        connect: makes the link to the engine.
        prepare: called whenever an engine has started, before any request.
        on_progress: called with what the engine does before it serves.
        on_lost: called when the engine died and starts again.
        on_resumed: called with the number of streams that the next engine continues.
        on_failure: called with the error that ended the engine.
    """

    def __init__(
        self,
        connect: Connect,
        prepare: Callable[[Started], Awaitable[None]],
        on_failure: Callable[[Exception], None],
        on_progress: ShowProgress = lambda progress: None,
        on_lost: Callable[[Exception], None] = lambda error: None,
        on_resumed: Callable[[int], None] = lambda number: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._prepare = prepare
        self._on_failure = on_failure
        self._on_progress = on_progress
        self._on_lost = on_lost
        self._on_resumed = on_resumed
        self._clock = clock
        self._failure: Exception | None = None
        self._streams: dict[str, RequestStream] = {}
        self._calls: dict[int, PendingCall] = {}
        self._numbers = count(1)
        self._is_prepared = False
        self._preparing: asyncio.Task[None] | None = None
        self._snapshot_taken: asyncio.Future[object] | None = None
        self._snapshot_s = clock()
        self.snapshot = CoreSnapshot()
        """The latest snapshot that was taken; `refresh_snapshot` takes one."""
        self.context_length = 0
        self._link = connect(self._receive)

    def start(self) -> None:
        self._link.start()

    async def close(self, timeout_s: float) -> bool:
        return await self._link.close(timeout_s)

    def snapshot_age(self) -> float:
        return self._clock() - self._snapshot_s

    async def refresh_snapshot(self) -> CoreSnapshot:
        """Return the state and totals as of now.

        They are the latest known ones if the engine does not answer within `SNAPSHOT_WAIT_SECONDS`,
        and before it is loaded and after it ended. Concurrent callers share one snapshot. It counts
        every output that was delivered before the call, because both are delivered in order.
        """
        if self._is_prepared and self._failure is None:
            if self._snapshot_taken is None or self._snapshot_taken.done():
                self._snapshot_taken = self._call(TakeSnapshot())
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._snapshot_taken), SNAPSHOT_WAIT_SECONDS)
        return self.snapshot

    def is_alive(self) -> bool:
        return self._failure is None and self._link.is_alive()

    def step_seconds(self) -> float:
        return self._link.step_seconds()

    def latest_step(self) -> str:
        return self._link.latest_step()

    def restart(self, error: Exception) -> bool:
        """Replace an engine whose step does not end, if that is possible."""
        return self._failure is None and self._link.restart(error)

    @asynccontextmanager
    async def stream(
        self, requests: tuple[Request, ...], retries: int = RETRIES
    ) -> AsyncIterator[RequestStream]:
        """Run requests that belong together, all or none; leaving aborts the unfinished.

        The next engine continues them where one was lost, up to `retries` times.

        Raises:
            RequestRefused: the core refuses one of them.
            EngineFailed: the core has failed.
        """
        stream = RequestStream(requests, self._call(Submit(requests)), retries)
        self._streams |= dict.fromkeys(stream.running, stream)
        try:
            await stream.accepted
            yield stream
        finally:
            stream.submitted.cancel()
            for request in requests:
                del self._streams[request.request_id]
            if stream.running:
                self.abort(stream, sorted(stream.running))
            stream.ended.set_result(None)

    def abort(self, stream: RequestStream, request_ids: Sequence[str]) -> None:
        """Have the core drop requests of a stream; further outputs of them are dropped."""
        stream.running -= set(request_ids)
        if self._is_prepared and self._failure is None:
            self._link.send(EngineCall(0, Abort(tuple(request_ids))))

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
        await self._call(Reload(table))

    async def exchange_draft(self, folder: Path) -> None:
        """Copy the draft in a folder over the running one.

        Raises:
            DraftRefused: it cannot replace the running draft.
            EngineFailed: the engine has failed.
        """
        await self._call(ExchangeDraft(folder))

    async def load_adapter(
        self, name: str, folder: Path, *, is_preparation: bool = False
    ) -> AdapterFacts:
        """Read an adapter and use it from the next step on; return what is known of it.

        Args:
            is_preparation: before any request.

        Raises:
            AdapterRefused: it is damaged, not supported, or does not fit.
            EngineFailed: the engine has failed.
        """
        facts = await self._call(LoadAdapter(name, folder), is_preparation=is_preparation)
        assert isinstance(facts, Mapping)
        return facts

    async def unload_adapter(self, name: str, *, is_preparation: bool = False) -> None:
        """Release an adapter; returns once no request has it.

        Raises:
            EngineFailed: the engine has failed.
        """
        is_gone = False
        while not is_gone:
            while not is_preparation and (own := self._ends_of(name)):
                await asyncio.wait(own)
            is_gone = bool(await self._call(UnloadAdapter(name), is_preparation=is_preparation))

    def _ends_of(self, adapter: str) -> list[asyncio.Future[None]]:
        streams = dict.fromkeys(self._streams.values())
        return [each.ended for each in streams if each.uses(adapter)]

    async def prepare_table(self, table: RangeTable) -> None:
        """Reload a table before any request; raises as `reload`."""
        await self._call(Reload(table), is_preparation=True)

    async def prepare_draft(self, folder: Path) -> None:
        """Exchange the draft before any request; raises as `exchange_draft`."""
        await self._call(ExchangeDraft(folder), is_preparation=True)

    async def prepare_grammars(self, tokens: TokenBytes) -> None:
        """Prepare the vocabulary of grammars before any request."""
        await self._call(PrepareGrammars(tokens), is_preparation=True)

    def _call(self, command: Command, *, is_preparation: bool = False) -> asyncio.Future[object]:
        """Send a command; the future has its value, or the reason if it is refused."""
        done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        if self._failure is not None:
            done.set_exception(self._failure)
            return done
        number = next(self._numbers)
        self._calls[number] = PendingCall(command, done)
        done.add_done_callback(lambda _: self._calls.pop(number, None))
        if self._is_prepared or is_preparation:
            self._link.send(EngineCall(number, command))
        return done

    def _receive(self, event: Event) -> None:
        match event:
            case StepOutputs(outputs):
                self._dispatch(outputs)
            case Reply():
                self._note_reply(event)
            case Progressed(progress):
                self._on_progress(progress)
            case Started():
                self.context_length = event.context_length
                self._note_snapshot(event.snapshot)
                self._preparing = asyncio.create_task(self._begin(event))
            case Lost(error):
                self._lose(error)
            case Failed(error, snapshot):
                if snapshot is not None:
                    self._note_snapshot(snapshot)
                self.fail(error)
            case Ended(snapshot):
                self._is_prepared = False
                self._note_snapshot(snapshot)

    def _dispatch(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is not None:
                stream.put(output)

    def _note_reply(self, reply: Reply) -> None:
        call = self._calls.get(reply.number)
        if isinstance(reply.value, CoreSnapshot):
            self._note_snapshot(reply.value)
        if call is not None:
            settle(call.done, reply.error, reply.value)

    def _note_snapshot(self, snapshot: CoreSnapshot) -> None:
        self.snapshot, self._snapshot_s = snapshot, self._clock()

    async def _begin(self, started: Started) -> None:
        """Prepare the engine, and send what waits for it."""
        try:
            await self._prepare(started)
        except Exception as error:
            if self._failure is None:
                log.error("the engine did not load: %s", one_line(error))
                self.fail(error)
            return
        self._is_prepared = True
        waiting = tuple(self._calls.items())
        streams = dict.fromkeys(self._streams.values())  # oldest first, as they were queued
        resumed = [each for each in streams if self._resume(each)]
        self._on_resumed(len(resumed))
        for number, call in waiting:
            if not call.done.done():
                self._link.send(EngineCall(number, call.command))

    def _resume(self, stream: RequestStream) -> bool:
        """Submit what is left of a stream that a lost engine had accepted; return if any is."""
        if not stream.accepted.done() or not (rest := stream.rest()):
            return False
        stream.submitted = self._call(Submit(rest))
        stream.submitted.add_done_callback(partial(_end_refused, stream))
        return True

    def _lose(self, error: Exception) -> None:
        """Count the loss in every stream, and end those that may have no other engine.

        An engine that died before it was prepared had no requests.
        """
        had_requests, self._is_prepared = self._is_prepared, False
        if self._preparing is not None:
            self._preparing.cancel()
        self._on_lost(error)
        for stream in set(self._streams.values()) if had_requests else ():
            stream.breaks += 1
            if stream.breaks > stream.retries:
                stream.put(_as_failure(error))
            elif stream.accepted.done():  # else the call itself is sent again
                stream.submitted.cancel()

    def fail(self, error: Exception) -> None:
        """End every stream and call, and all to come, with the first error."""
        if self._failure is not None:
            return
        self._failure = _as_failure(error)
        self.fail_all(self._failure)
        if self._snapshot_taken is not None:
            settle(self._snapshot_taken, None)
        for call in tuple(self._calls.values()):
            settle(call.done, self._failure)
        self._on_failure(error)


def _end_refused(stream: RequestStream, submitted: asyncio.Future[object]) -> None:
    if not submitted.cancelled() and isinstance(error := submitted.exception(), Exception):
        stream.put(error)


def _as_failure(error: Exception) -> EngineFailed:
    return error if isinstance(error, EngineFailed) else EngineFailed(str(error))
