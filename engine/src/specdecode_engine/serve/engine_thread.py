"""The one thread that owns the core: commands in, events out, one delivery per round."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from specdecode_engine.depth.decision import TableRefused
from specdecode_engine.depth.ranges import DepthTable
from specdecode_engine.metrics import CoreSnapshot
from specdecode_engine.request import Output, Request, RequestRefused
from specdecode_engine.serve.core import Core, EngineFailed

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Submit:
    """Queue all of these requests, or none of them."""

    requests: tuple[Request, ...]


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget these requests."""

    request_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reload:
    """Choose depths by another table; `done` says when that is so, or why not."""

    table: DepthTable
    done: "Future[None]"


@dataclass(frozen=True, slots=True)
class Stop:
    """End the thread."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether the core took a `Submit`, named by its first request."""

    request_id: str
    refusal: Exception | None


Command = Submit | Abort | Reload | Stop
Event = Verdict | Output


class EngineThread:
    """Loads a core and steps it while it has work; sleeps in its inbox while it has none.

    Args:
        load: builds the core, on this thread.
        on_ready: told once the core can be used.
        on_events: given everything that one round brought.
        on_failure: told once why the thread ended, when nobody asked it to.
        clock: seconds, monotonic.

    The three `on_` functions are called on this thread.
    """

    def __init__(
        self,
        load: Callable[[], Core],
        on_ready: Callable[[], None],
        on_events: Callable[[list[Event]], None],
        on_failure: Callable[[Exception], None],
        clock: Callable[[], float],
    ) -> None:
        self._load = load
        self._on_ready = on_ready
        self._on_events = on_events
        self._on_failure = on_failure
        self._clock = clock
        self._inbox: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._step_began_s: float | None = None
        self.context_length = 0
        self.snapshot = CoreSnapshot()
        self._looked_s = 0.0

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def send(self, command: Command) -> None:
        """Leave a command; from any thread."""
        self._inbox.put(command)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; false when the thread is still busy after `timeout_s`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def step_seconds(self) -> float:
        """For how long the present step has been running; 0 between steps."""
        began_s = self._step_began_s
        return 0.0 if began_s is None else self._clock() - began_s

    def _run(self) -> None:
        try:
            core = self._load()
            self.context_length = core.context_length
            self.snapshot = core.snapshot()
        except Exception as error:
            log.error("the engine did not load: %s", _one_line(error))
            log.debug("traceback of the load", exc_info=True)
            self._on_failure(error)
            return
        try:
            self._on_ready()
            self._serve(core)
        except Exception as error:
            log.exception("the engine core failed and cannot go on")
            self._on_failure(EngineFailed(f"{type(error).__name__} in the engine core"))

    def _serve(self, core: Core) -> None:
        while True:
            verdicts: list[Event] = []
            for command in self._commands(wait=not core.has_work()):
                if isinstance(command, Stop):
                    return
                if isinstance(command, Submit):
                    verdicts.append(_submit(core, command.requests))
                elif isinstance(command, Reload):
                    _reload(core, command)
                else:
                    _abort(core, command.request_ids)
            self._deliver(verdicts)
            outputs = self._step(core) if core.has_work() else []
            self._look(core)
            self._deliver(outputs)

    def _look(self, core: Core) -> None:
        """Take a snapshot: always before the thread rests, else now and then, for it takes time."""
        now_s = self._clock()
        if not core.has_work() or now_s - self._looked_s >= SNAPSHOT_SECONDS:
            self.snapshot = core.snapshot()
            self._looked_s = now_s

    def _step(self, core: Core) -> list[Event]:
        self._step_began_s = self._clock()
        outputs = core.step()
        self._step_began_s = None
        return list(outputs)

    def _deliver(self, events: list[Event]) -> None:
        if events:
            self._on_events(events)

    def _commands(self, wait: bool) -> Iterator[Command]:
        if wait:
            yield self._inbox.get()
        while True:
            try:
                yield self._inbox.get_nowait()
            except queue.Empty:
                return


def _submit(core: Core, requests: tuple[Request, ...]) -> Verdict:
    name = requests[0].request_id
    for index, request in enumerate(requests):
        try:
            core.submit(request)
        except Exception as error:
            _abort(core, tuple(taken.request_id for taken in requests[:index]))
            if not isinstance(error, RequestRefused):
                log.exception("the engine core failed to take a request")
                return Verdict(name, EngineFailed("the engine core failed to take the request"))
            return Verdict(name, error)
    return Verdict(name, None)


def _reload(core: Core, command: Reload) -> None:
    try:
        core.reload(command.table)
    except TableRefused as error:
        command.done.set_exception(error)
    else:
        command.done.set_result(None)


def _abort(core: Core, request_ids: tuple[str, ...]) -> None:
    for request_id in request_ids:
        core.abort(request_id)


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
