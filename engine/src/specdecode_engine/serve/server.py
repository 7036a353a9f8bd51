"""Runs the server from the first probe to the last answer."""

import asyncio
import logging
import os
import socket
from types import FrameType

import uvicorn
import uvloop

from specdecode_api.boot import EngineBoot
from specdecode_engine.serve import errors
from specdecode_engine.serve.api_keys import NoApiKeys
from specdecode_engine.serve.app import build_app
from specdecode_engine.serve.farewell import close_idle
from specdecode_engine.serve.service import Failed, Load, Service
from specdecode_engine.serve.table_watch import Reread

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
FLUSH_SECONDS = 5
JOIN_SECONDS = 5.0


class SignalledServer(uvicorn.Server):
    """Uvicorn that leaves it to the service what a signal means."""

    def __init__(self, service: Service, sock: socket.socket) -> None:
        config = uvicorn.Config(
            build_app(service),
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FLUSH_SECONDS,
        )
        super().__init__(config)
        self._service = service
        self._socket = sock
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take SIGTERM or SIGINT: the first stops gently, the next at once."""
        self._loop.call_soon_threadsafe(self._service.lifecycle.stop)

    async def run_until_end(self) -> int:
        """Serve until stopped or failed; return the process's exit code."""
        self._service.engine.start()
        ending = asyncio.create_task(self._end())
        watch, keys = self._service.watch, self._service.keys
        watching = [asyncio.create_task(watch.run())] if watch else []
        if keys:
            watching.append(asyncio.create_task(keys.watch()))
        await self.serve(sockets=[self._socket])
        for task in watching:
            task.cancel()
        return await ending

    async def _end(self) -> int:
        lifecycle = self._service.lifecycle
        await lifecycle.ending()
        close_idle(self.server_state.connections)
        if lifecycle.failure is None:
            await self._drain()
        self.should_exit = True
        return 0 if lifecycle.failure is None else 1

    async def _drain(self) -> None:
        lifecycle, seconds = self._service.lifecycle, self._service.boot.server.drain_seconds
        log.info("stopping: %d calls have %g s to finish", lifecycle.calls, seconds)
        try:
            await asyncio.wait_for(lifecycle.idle(), seconds)
        except TimeoutError:
            log.warning("stopping: %d calls were cut off", lifecycle.calls)
        self._service.engine.end_all(
            errors.unavailable("this pod stopped before the answer was complete", "draining", 1)
        )


async def run(
    boot: EngineBoot,
    load: Load,
    sock: socket.socket,
    on_failure: Failed,
    reread: Reread | None = None,
) -> tuple[int, bool]:
    """Serve on a bound socket; return the exit code and whether the engine thread has ended."""
    try:
        service = Service(boot, load, reread, on_failure=on_failure)
    except NoApiKeys as error:
        log.error("cannot serve: %s", error)
        on_failure(error)
        return 1, True
    code = await SignalledServer(service, sock).run_until_end()
    return code, await service.engine.close(JOIN_SECONDS)


def serve(
    boot: EngineBoot,
    load: Load,
    on_failure: Failed = lambda error: None,
    reread: Reread | None = None,
) -> int:
    """Listen at once, load meanwhile, serve until a signal; return the process's exit code.

    Args:
        boot: the whole boot file.
        load: builds the engine, on the engine's thread.
        on_failure: told why the engine did not load or cannot go on, before the process ends.
        reread: reads the configuration anew: a table that changes in it is taken up.
    """
    sock = listen(boot.server.host, boot.server.port)
    host, port = sock.getsockname()[:2]
    log.info("listening on %s port %d", host, port)
    # A token is a message of its own: an event loop and a parser in C send twice as many.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code, has_ended = runner.run(run(boot, load, sock, on_failure, reread))
    if not has_ended:
        log.warning("the engine thread is still busy; leaving without it")
        logging.shutdown()
        os._exit(code)
    return code


def listen(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address; port 0 takes any free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise OSError(f"cannot listen on {host} port {port}: {error}") from error
    return sock
