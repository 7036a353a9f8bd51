"""The engine in a process of its own: started, watched, and started again when it dies."""

import asyncio
import logging
import pickle
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

from specdecode_api.boot import EngineBoot
from specdecode_engine.frames import framed, take_frames
from specdecode_engine.serve.engine.child import (
    PROGRAM,
    FromEngine,
    LoadBoot,
    Ping,
    Start,
    StepState,
    Stop,
    ToEngine,
)
from specdecode_engine.serve.engine.core import ProcessFailed, RankPlace, make_links
from specdecode_engine.serve.engine.messages import (
    Connect,
    Ended,
    EngineCall,
    EngineLink,
    Failed,
    Lost,
    Receive,
    Started,
)

log = logging.getLogger(__name__)

MAX_DEATHS = 3
DEATHS_SECONDS = 600.0
PING_SECONDS = 1.0
EXIT_SECONDS = 5.0
FOLDER_PREFIX = "specdecode-ranks-"


class RestartLimit:
    """Decides whether a process that died may start again: at most `count` times in `seconds`."""

    def __init__(self, count: int = MAX_DEATHS, seconds: float = DEATHS_SECONDS) -> None:
        self._seconds = seconds
        self._deaths_s: deque[float] = deque(maxlen=count + 1)

    def allows(self, now_s: float) -> bool:
        """Count a death; return whether the process may start again."""
        deaths = self._deaths_s
        deaths.append(now_s)
        return len(deaths) < (deaths.maxlen or 0) or now_s - deaths[0] > self._seconds


class Channel(asyncio.Protocol):
    """Pickled messages on a socket pair between two processes of this program.

    Nobody else can open the socket. What a client sent is inside the messages as plain numbers and
    strings, which pickle reads back as such.
    """

    def __init__(self, on_message: Callable[[FromEngine], None]) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._on_message = on_message
        self._received = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        for frame in take_frames(self._received):
            self._on_message(pickle.loads(frame))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set_result(None)

    def send(self, message: ToEngine) -> None:
        """Send a message; one to a process that is gone is lost."""
        assert self._transport is not None
        if not self._transport.is_closing():  # else the loop of uvloop raises an error
            self._transport.write(framed(pickle.dumps(message)))

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()


class EngineProcess:
    """Supervises the engine process; see `EngineLink`.

    An error while the engine is loaded for the first time is final, because it would come again.
    Any other end of the process starts the next one, as far as `RestartLimit` allows. Where the
    target is divided among ranks, there is a process for each, and the end of one ends them all.

    Args:
        load: builds the engine, in the process.
        clock: seconds, monotonic.
    """

    def __init__(
        self, boot: EngineBoot, load: LoadBoot, receive: Receive, clock: Callable[[], float]
    ) -> None:
        self._start = Start(boot, load, logging.getLogger().getEffectiveLevel())
        self._size = boot.parallelism.tensor
        self._receive = receive
        self._clock = clock
        self._limit = RestartLimit()
        self._processes: list[subprocess.Popen[bytes]] = []  # by rank
        self._channel: Channel | None = None  # to the leader
        self._supervising: asyncio.Task[None] | None = None
        self._has_loaded = self._is_serving = False
        self._is_closing = False
        self._is_killed = False  # by this object
        self._error: Exception | None = None
        self._asked_s: float | None = None  # when a ping without an answer was sent
        self._state = StepState(0.0, "no engine is loaded")

    def start(self) -> None:
        self._supervising = asyncio.create_task(self._supervise())

    def send(self, call: EngineCall) -> None:
        if self._channel is not None:
            self._channel.send(call)

    async def close(self, timeout_s: float) -> bool:
        self._is_closing = True
        if self._supervising is None:
            return True
        if self._channel is not None:
            self._channel.send(Stop())
        await asyncio.wait((self._supervising,), timeout=timeout_s)
        self._kill()
        await self._supervising
        return True

    def is_alive(self) -> bool:
        return self._supervising is not None and not self._supervising.done()

    def step_seconds(self) -> float:
        waited_s = 0.0 if self._asked_s is None else self._clock() - self._asked_s
        return self._state.seconds + max(0.0, waited_s - PING_SECONDS)

    def latest_step(self) -> str:
        return self._state.description

    def restart(self, error: Exception) -> bool:
        if not self._processes or self._is_closing:
            return False
        self._error = error
        self._kill()
        self._forget_step()
        return True

    async def _supervise(self) -> None:
        try:
            while (error := await self._run()) is not None:
                if self._limit.allows(self._clock()):
                    log.error("%s; it starts again", error)
                    self._receive(Lost(error))
                    continue
                failure = ProcessFailed(
                    f"the engine process died {MAX_DEATHS + 1} times within {DEATHS_SECONDS:.0f} s "
                    f"and is not started again; the last time: {error}"
                )
                log.error("%s", failure)
                raise failure
        except Exception as error:
            self._receive(Failed(error, None))

    async def _run(self) -> Exception | None:
        """Run the processes to the end of one; return why it died, or None if it was to end.

        Raises what ended the first load.
        """
        if self._is_closing:
            return None
        self._error, self._is_killed = None, False
        is_alone = self._size == 1  # and need not be found by other ranks
        with nullcontext("") if is_alone else TemporaryDirectory(prefix=FOLDER_PREFIX) as folder:
            channels = await self._spawn_all(Path(folder))
            self._channel = channels[0]
            pinging = asyncio.create_task(self._ping(channels[0]))
            try:
                closed = [channel.closed for channel in channels]
                await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED)
            finally:
                pinging.cancel()
                self._channel = None
                self._forget_step()
            rank = next(rank for rank, one in enumerate(closed) if one.done())
            rank, status = await asyncio.to_thread(self._reap, rank)
        if self._is_closing:
            return None
        if isinstance(self._error, ProcessFailed) and not self._has_loaded:
            raise self._error
        name = "the engine process" + (f" of rank {rank}" if self._size > 1 else "")
        return self._error or ProcessFailed(f"{name} {_describe(status)}")

    async def _spawn_all(self, folder: Path) -> list[Channel]:
        """Start a process for each rank."""
        if self._size == 1:
            return [await self._spawn(self._start, self._take)]
        links, channels = make_links(self._size), []
        for rank, ends in enumerate(links):
            descriptors = tuple(end.fileno() for end in ends)
            place = RankPlace(rank, self._size, str(folder / "store"), descriptors)
            # What a follower logs below a warning, the leader logs too.
            level = max(self._start.log_level, logging.WARNING if rank else 0)
            start = replace(self._start, place=place, log_level=level)
            take = self._take if rank == 0 else self._take_from_follower
            channels.append(await self._spawn(start, take))
        for end in chain.from_iterable(links):
            end.close()
        return channels

    async def _spawn(self, start: Start, take: Callable[[FromEngine], None]) -> Channel:
        own, other = socket.socketpair()
        links = () if start.place is None else start.place.file_descriptors
        with other:
            process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno(), *links],
                process_group=0,  # signals of a terminal end the server, which drains
            )
        self._processes.append(process)
        log.info("engine process %d", process.pid)
        channel = Channel(take)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=own)
        channel.send(start)
        return channel

    def _take(self, message: FromEngine) -> None:
        match message:
            case StepState():
                self._state, self._asked_s = message, None
            case Failed(error):
                self._error = error
                if self._channel is not None:
                    self._channel.close()
            case _:
                if isinstance(message, Started):
                    self._has_loaded = self._is_serving = True
                self._receive(message)
                if isinstance(message, Ended) and self._channel is not None:
                    self._channel.close()

    def _take_from_follower(self, message: FromEngine) -> None:
        """Note why a follower fails; the process then ends, unlike the leader's."""
        if isinstance(message, Failed) and self._error is None:
            self._error = message.error

    async def _ping(self, channel: Channel) -> None:
        """Ask for the state of the step every second."""
        while True:
            await asyncio.sleep(PING_SECONDS)
            if self._asked_s is None and self._is_serving:
                self._asked_s = self._clock()
                channel.send(Ping())

    def _forget_step(self) -> None:
        self._is_serving = False
        self._asked_s = None
        self._state = StepState(0.0, self._state.description)

    def _reap(self, rank: int) -> tuple[int, int | None]:
        """End all processes after that of a rank; return which one died first, and its status.

        It is one that a signal killed, if there is any: the others fail when they miss it. Such a
        process may still be dying, but keeps its signal when SIGTERM follows. A follower that lost
        the leader ends with status 0.
        """
        processes, self._processes = self._processes, []
        try:
            status = _wait(processes[rank])
            if rank and status == 0:
                rank, status = 0, _wait(processes[0])
            for process in processes:
                process.terminate()
            statuses = [_wait(process) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        statuses[rank] = status
        killed = [
            number
            for number, one in enumerate(statuses)
            if one is not None and one < 0 and one != -signal.SIGTERM
        ]
        if killed and not self._is_killed:
            rank = rank if rank in killed else killed[0]
            status, self._error = statuses[rank], None
        return rank, status

    def _kill(self) -> None:
        self._is_killed = True
        for process in self._processes:
            process.kill()


def in_process(boot: EngineBoot, load: LoadBoot, clock: Callable[[], float]) -> Connect:
    """Return how to reach an engine in a process of its own."""

    def connect(receive: Receive) -> EngineLink:
        return EngineProcess(boot, load, receive, clock)

    return connect


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for the end of a process; kill it, and return None, if it does not end soon."""
    try:
        return process.wait(EXIT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _describe(code: int | None) -> str:
    """Describe the exit status of a process that was not to end."""
    if code is None:
        return f"closed its socket, did not end within {EXIT_SECONDS:.0f} s and was killed"
    if code >= 0:
        return f"ended with status {code}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL, as where memory runs out"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
