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
from specdecode_engine.serve.engine.core import ProcessFailed
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
    Any other end of the process starts the next one, as far as `RestartLimit` allows.

    Args:
        load: builds the engine, in the process.
        clock: seconds, monotonic.
    """

    def __init__(
        self, boot: EngineBoot, load: LoadBoot, receive: Receive, clock: Callable[[], float]
    ) -> None:
        self._start = Start(boot, load, logging.getLogger().getEffectiveLevel())
        self._receive = receive
        self._clock = clock
        self._limit = RestartLimit()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._has_loaded = self._is_serving = False
        self._is_closing = False
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
        if self._process is not None:
            self._process.kill()
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
        if self._process is None or self._is_closing:
            return False
        self._error = error
        self._process.kill()
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
        """Run one process to its end; return why it died, or None if it was to end.

        Raises what ended the first load.
        """
        if self._is_closing:
            return None
        self._error = None
        channel = self._channel = await self._spawn()
        pinging = asyncio.create_task(self._ping(channel))
        try:
            await channel.closed
        finally:
            pinging.cancel()
            self._channel = None
            self._forget_step()
        code = await asyncio.to_thread(self._reap)
        if self._is_closing:
            return None
        if isinstance(self._error, ProcessFailed) and not self._has_loaded:
            raise self._error
        return self._error or ProcessFailed(f"the engine process {_describe(code)}")

    async def _spawn(self) -> Channel:
        own, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM.format(other.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                process_group=0,  # signals of a terminal end the server, which drains
            )
        log.info("engine process %d", self._process.pid)
        channel = Channel(self._take)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, sock=own)
        channel.send(self._start)
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

    def _reap(self) -> int:
        """Wait for the end of the process; kill it if it does not end soon."""
        assert self._process is not None
        try:
            return self._process.wait(EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def in_process(boot: EngineBoot, load: LoadBoot, clock: Callable[[], float]) -> Connect:
    """Return how to reach an engine in a process of its own."""

    def connect(receive: Receive) -> EngineLink:
        return EngineProcess(boot, load, receive, clock)

    return connect


def _describe(code: int) -> str:
    """Describe the exit status of a process that was not to end."""
    if code >= 0:
        return f"ended with status {code}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL, as where memory runs out"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
