"""The engine process: executes what the server sends on a socket, and ends with the server."""

import ctypes
import logging
import os
import pickle
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import NamedTuple, NoReturn

from specdecode_api.boot import EngineBoot
from specdecode_api.report import TerminationReason
from specdecode_engine.frames import receive_frame, send_frame
from specdecode_engine.process import (
    configure_logging,
    freeze_heap,
    return_freed_tensors,
    termination_message_for,
)
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.serve.engine.compile_threads import CompileThreads
from specdecode_engine.serve.engine.core import LoadedEngine, ProcessFailed, RankPlace
from specdecode_engine.serve.engine.engine_host import EngineHost
from specdecode_engine.serve.engine.followers import Followers, LeadingCore, follow
from specdecode_engine.serve.engine.messages import EngineCall, Event, Failed

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1  # of Linux' sys/prctl.h
PROGRAM = "from specdecode_engine.serve.engine.child import run; run({})"

LoadBoot = Callable[..., LoadedEngine]
"""A function of a module, sent by its name: of a boot file, `ShowProgress` and, where the target is
divided, `place` and `links`; see `load_engine`."""


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to the process."""

    boot: EngineBoot
    load: LoadBoot
    log_level: int
    place: RankPlace | None = None  # where the target is divided among ranks


class Ping(NamedTuple):
    """Requests the state of the current step."""


class Stop(NamedTuple):
    """Ends the process after the current step."""


class StepState(NamedTuple):
    """How long the current step has been running, and what it computes."""

    seconds: float
    description: str


ToEngine = Start | EngineCall | Ping | Stop
FromEngine = Event | StepState


def run(file_descriptor: int) -> None:
    """Run the process until the server closes the socket, or is gone."""
    _end_with_parent()
    channel = socket.socket(fileno=file_descriptor)
    channel.set_inheritable(False)  # a child that outlived this process would keep it open
    first = receive_frame(channel)
    if first is None:
        return
    start: Start = pickle.loads(first)
    configure_logging(start.log_level)
    return_freed_tensors()
    sending = threading.Lock()

    def emit(event: FromEngine) -> None:
        frame = pickle.dumps(_portable(event))
        with sending, suppress(OSError):  # if the server is gone, this process ends at once
            send_frame(channel, frame)

    load, links = start.load, tuple[Connection, ...]()
    if start.place is not None:
        links = start.place.connect()
        for one in start.place.file_descriptors:
            os.set_inheritable(one, False)
        load = partial(start.load, place=start.place, links=links)
    if start.place is not None and start.place.rank > 0:
        _follow(start.boot, load, links[0], emit)
        return
    host = EngineHost(partial(_load, start.boot, load, links), emit)
    host.start()
    while (frame := receive_frame(channel)) is not None:
        message = pickle.loads(frame)
        match message:
            case EngineCall():
                host.send(message)
            case Ping():
                emit(StepState(host.step_seconds(), host.latest_step()))
            case Stop():
                host.stop()
    # The server has closed the socket, or is gone: nobody waits for a step that still runs, and
    # the interpreter could hang while it destroys tensors.
    logging.shutdown()
    os._exit(0)


def _load(
    boot: EngineBoot, load: LoadBoot, links: tuple[Connection, ...], progress: ShowProgress
) -> LoadedEngine:
    loaded = load(boot, progress)
    freeze_heap()
    if links:
        return replace(loaded, core=LeadingCore(loaded.core, Followers(links)))
    return loaded


def _follow(
    boot: EngineBoot, load: LoadBoot, leader: Connection, emit: Callable[[FromEngine], None]
) -> NoReturn:
    """Load the engine of a follower, and follow the leader to its end."""
    code = 0
    try:
        loaded = load(boot, lambda progress: None)
        freeze_heap()
        follow(loaded.core, leader, CompileThreads())
    except Exception as error:
        log.exception("a follower fails")
        emit(Failed(error, None))
        code = 1
    logging.shutdown()
    os._exit(code)


def _portable(event: FromEngine) -> FromEngine:
    """Return an event that the server can read without the libraries of the engine."""
    if not isinstance(event, Failed):
        return event
    words = termination_message_for(event.error)
    return Failed(ProcessFailed(words.message, TerminationReason(words.reason)), event.snapshot)


def _end_with_parent() -> None:
    """Have Linux kill this process when its parent dies, also while a step holds the interpreter.

    Without prctl, the end of the socket does the same when no step does.
    """
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
