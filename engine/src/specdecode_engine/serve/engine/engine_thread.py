"""The one thread that owns the core: commands in, outputs out, one delivery per step."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress

from specdecode_engine.adaptive.policy import TableRefused
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.request import Output, Request, RequestRefused
from specdecode_engine.serve.engine.core import Core, EngineFailed
from specdecode_engine.stats.snapshot import CoreSnapshot

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.05
"""Time without work or commands before each piece of deferred work, which could delay a request:
longer than the gap between two requests of a client that sends one after another."""

Command = Callable[[Core], None]
"""Runs on the engine thread, between two steps."""
OnResult = Callable[[Exception | None], None]
"""Called on the engine thread with the error of a command, None when it succeeded."""


class EngineThread:
    """Loads a core and steps it while it has work; waits for commands while it has none.

    `submit`, `abort`, `reload`, `request_snapshot` and `stop` may be called from any thread.

    `snapshot` is the latest one that was taken, at `snapshot_s`: when the core was loaded, for each
    `request_snapshot`, and when the thread ended. A step takes none.

    Args:
        load: builds the core, on this thread.
        on_ready: called once the core can be used.
        on_outputs: called with all outputs of a step.
        on_failure: called once with the error that ended the thread.
        clock: seconds, monotonic.

    The three `on_` functions are called on this thread.
    """

    def __init__(
        self,
        load: Callable[[], Core],
        on_ready: Callable[[], None],
        on_outputs: Callable[[list[Output]], None],
        on_failure: Callable[[Exception], None],
        clock: Callable[[], float],
    ) -> None:
        self._load = load
        self._on_ready = on_ready
        self._on_outputs = on_outputs
        self._on_failure = on_failure
        self._clock = clock
        self._queue: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._step_started_s: float | None = None
        self.context_length = 0
        self.is_serving = False
        self.snapshot = CoreSnapshot()
        self.snapshot_s = clock()

    def start(self) -> None:
        """Start loading."""
        self._thread.start()

    def submit(self, requests: tuple[Request, ...], on_result: OnResult) -> None:
        """Queue all of the requests in the core, or none of them."""
        self._queue.put(lambda core: on_result(_submit(core, requests)))

    def abort(self, request_ids: tuple[str, ...]) -> None:
        """Drop requests."""
        self._queue.put(lambda core: _abort(core, request_ids))

    def reload(self, table: RangeTable, on_result: OnResult) -> None:
        """Choose draft steps by another table."""
        self._queue.put(lambda core: on_result(_reload(core, table)))

    def request_snapshot(self, on_taken: Callable[[], None]) -> None:
        """Take a snapshot between two steps, at once when idle; `on_taken` is called afterwards."""

        def take(core: Core) -> None:
            self._take_snapshot(core)
            on_taken()

        self._queue.put(take)

    def stop(self) -> None:
        """End the thread after the current step."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; false when the thread is still busy after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def step_seconds(self) -> float:
        """How long the current step has been running; 0 between steps."""
        started_s = self._step_started_s
        return 0.0 if started_s is None else self._clock() - started_s

    def _run(self) -> None:
        try:
            core = self._load()
            self.context_length = core.context_length
            self._take_snapshot(core)
        except Exception as error:
            log.error("the engine did not load: %s", _one_line(error))
            log.debug("traceback of the load", exc_info=True)
            self._on_failure(error)
            return
        self.is_serving = True
        try:
            self._on_ready()
            self._serve(core)
        except Exception as error:
            log.exception("the engine core failed; the engine stops")
            self._end(core)
            self._on_failure(EngineFailed(f"{type(error).__name__} in the engine core"))
        else:
            self._end(core)

    def _serve(self, core: Core) -> None:
        while True:
            for command in self._commands(core):
                if command is None:
                    return
                command(core)
            if core.has_work() and (outputs := self._step(core)):
                self._on_outputs(outputs)

    def _take_snapshot(self, core: Core) -> None:
        self.snapshot, self.snapshot_s = core.snapshot(), self._clock()

    def _end(self, core: Core) -> None:
        """Keep the final figures; a core that failed may be unable to report any."""
        self.is_serving = False
        with suppress(Exception):
            self._take_snapshot(core)

    def _step(self, core: Core) -> list[Output]:
        self._step_started_s = self._clock()
        outputs = core.step()
        self._step_started_s = None
        return outputs

    def _idle_step(self, core: Core) -> bool:
        self._step_started_s = self._clock()
        is_any_left = core.idle_step()
        self._step_started_s = None
        return is_any_left

    def _commands(self, core: Core) -> Iterator[Command | None]:
        if not core.has_work():
            yield self._wait(core)
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def _wait(self, core: Core) -> Command | None:
        """Wait for a command; meanwhile the core does its deferred work."""
        is_deferred = True
        while is_deferred:
            try:
                return self._queue.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                is_deferred = self._idle_step(core)
        return self._queue.get()


def _submit(core: Core, requests: tuple[Request, ...]) -> Exception | None:
    for index, request in enumerate(requests):
        try:
            core.submit(request)
        except Exception as error:
            _abort(core, tuple(accepted.request_id for accepted in requests[:index]))
            if isinstance(error, RequestRefused):
                return error
            log.exception("the engine core failed to accept a request")
            return EngineFailed("the engine core failed to accept the request")
    return None


def _reload(core: Core, table: RangeTable) -> Exception | None:
    try:
        core.reload(table)
    except TableRefused as error:
        return error
    return None


def _abort(core: Core, request_ids: tuple[str, ...]) -> None:
    for request_id in request_ids:
        core.abort(request_id)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
