"""The one thread that owns the core: commands in, outputs out, one delivery per step."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from specdecode_engine.batch.request import Output
from specdecode_engine.process import DeviceFailed, is_device_error
from specdecode_engine.serve.engine.core import Core, EngineFailed
from specdecode_engine.stats.snapshot import CoreSnapshot

log = logging.getLogger(__name__)

T = TypeVar("T")

IDLE_SECONDS = 0.05
"""Time without work before each piece of deferred work, which could delay a request: longer than
the gap between two requests of a client that sends one after another."""

Command = Callable[[Core], None]
"""Runs on the engine thread, between two steps, at once when idle; what it raises is fatal."""


class EngineThread:
    """Loads a core and steps it while it has work; waits for commands while it has none.

    `put` and `stop` may be called from any thread. `snapshot` is the latest one that was taken:
    when the core was loaded, by `take_snapshot` as a command, and when the thread ended.

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
        self._core: Core | None = None
        self._step_started_s: float | None = None
        self._worked_s = 0.0
        self.snapshot = CoreSnapshot()

    def start(self) -> None:
        self._thread.start()

    def put(self, command: Command) -> None:
        """Run a command as soon as possible, after those that came before it."""
        self._queue.put(command)

    def stop(self) -> None:
        """End the thread after the current step."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; false when the thread is still busy after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def step_seconds(self) -> float:
        """How long the current step has been running; 0 between steps."""
        started_s = self._step_started_s
        return 0.0 if started_s is None else self._clock() - started_s

    def latest_step(self) -> str:
        """What the newest step computes; for any thread."""
        return "no engine is loaded" if self._core is None else self._core.latest_step

    def _run(self) -> None:
        try:
            core = self._core = self._load()
            self.take_snapshot(core)
        except Exception as error:
            log.error("the engine did not load: %s", one_line(error))
            log.debug("traceback of the load", exc_info=True)
            self._on_failure(error)
            return
        try:
            self._on_ready()
            self._serve(core)
        except Exception as error:
            log.exception("the engine core failed; the engine stops")
            self._end(core)
            self._on_failure(_failure(error, core))
        else:
            self._end(core)

    def _serve(self, core: Core) -> None:
        while True:
            for command in self._commands(core):
                if command is None:
                    return
                command(core)
            if core.has_work() and (outputs := self._timed(core.step)):
                self._on_outputs(outputs)

    def take_snapshot(self, core: Core) -> None:
        """Bring `snapshot` up to date."""
        self.snapshot = core.snapshot()

    def _end(self, core: Core) -> None:
        """Keep the final figures; a core that failed may be unable to report any."""
        with suppress(Exception):
            self.take_snapshot(core)

    def _timed(self, function: Callable[[], T]) -> T:
        self._step_started_s = self._clock()
        result = function()
        self._step_started_s = None
        self._worked_s = self._clock()
        return result

    def _commands(self, core: Core) -> Iterator[Command | None]:
        if not core.has_work():
            yield self._wait(core)
        while True:
            try:
                yield self._queue.get_nowait()
            except queue.Empty:
                return

    def _wait(self, core: Core) -> Command | None:
        """Wait for a command; meanwhile the core does its deferred work.

        Commands do not put it off: a scrape is one.
        """
        is_deferred = True
        while is_deferred:
            idle_s = self._clock() - self._worked_s
            try:
                return self._queue.get(timeout=max(0.0, IDLE_SECONDS - idle_s))
            except queue.Empty:
                is_deferred = self._timed(core.idle_step)
        return self._queue.get()


def _failure(error: Exception, core: Core) -> Exception:
    """Return the error that clients and the termination message get."""
    if not is_device_error(error):
        return EngineFailed(f"{type(error).__name__} in the engine core")
    # torch appends lines of advice for those who debug kernels.
    first_line = str(error).partition("\n")[0]
    return DeviceFailed(f"{first_line}; {core.latest_step}")


def one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
