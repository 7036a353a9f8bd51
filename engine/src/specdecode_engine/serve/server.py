"""Runs the HTTP server of one engine until a signal or a failure ends the process."""

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
import uvloop
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdecode_api.boot import EngineBoot
from specdecode_engine.batch.request import RequestRefused
from specdecode_engine.serve import admin, errors
from specdecode_engine.serve.control.api_keys import Authorization, NoApiKeys
from specdecode_engine.serve.control.tables import ReadBoot
from specdecode_engine.serve.engine.core import EngineFailed
from specdecode_engine.serve.lifecycle import ServerLifecycle
from specdecode_engine.serve.openai import chat, completions
from specdecode_engine.serve.service import Load, OnFailure, Service

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
FLUSH_SECONDS = 5
WATCH_SECONDS = 2.0
CLOSE = (b"connection", b"close")
JOIN_SECONDS = 5.0


def build_app(service: Service) -> FastAPI:
    app = FastAPI(title="specdecode", openapi_url=None)
    app.state.service = service
    app.add_middleware(ConnectionDrain, lifecycle=service.lifecycle)
    for module in (completions, chat, admin):
        app.include_router(module.router)
    known = (errors.HttpError, RequestRefused, EngineFailed, HTTPException, ClientDisconnect)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, errors.respond_to_error)
    if service.keys is not None:
        app.add_middleware(Authorization, keys=service.keys, owner=service.boot.server.owner)
    return app


class ConnectionDrain:
    """ASGI middleware that adds `Connection: close` to the responses of a draining pod.

    A Service balances connections, not requests: a client with an open connection returns to this
    pod until the connection ends, even after the pod's endpoint was removed. Idle connections are
    closed when the pod stops. A request can still be lost if it is on its way meanwhile.
    """

    def __init__(self, app: ASGIApp, lifecycle: ServerLifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.is_draining:
                message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
            await send(message)

        await self._app(scope, receive, send_with_close)


class SignalledServer(uvicorn.Server):
    """Uvicorn whose signals go to the service's lifecycle."""

    def __init__(self, service: Service, sock: socket.socket) -> None:
        config = uvicorn.Config(
            build_app(service),
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # a header must not replace the peer's address
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FLUSH_SECONDS,
        )
        super().__init__(config)
        self._service = service
        self._socket = sock
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGTERM or SIGINT: the first one stops gracefully, the second one at once."""
        self._loop.call_soon_threadsafe(self._service.lifecycle.stop)

    async def run_until_end(self) -> int:
        """Serve until stopped or failed; return the exit code of the process."""
        self._service.engine.start()
        ending = asyncio.create_task(self._end())
        watch, keys = self._service.watch, self._service.keys
        checks = [watch.check] if watch else []
        checks += [keys.refresh] if keys else []
        watching = [asyncio.create_task(_repeat(check)) for check in checks]
        await self.serve(sockets=[self._socket])
        for task in watching:
            task.cancel()
        return await ending

    async def _end(self) -> int:
        lifecycle = self._service.lifecycle
        await lifecycle.wait_for_end()
        self._service.fail_if_late()
        for connection in tuple(self.server_state.connections):
            connection.shutdown()  # at once when idle, else after the current response
        if lifecycle.failure is None:
            await self._drain()
        self.should_exit = True
        return 0 if lifecycle.failure is None else 1

    async def _drain(self) -> None:
        lifecycle, seconds = self._service.lifecycle, self._service.boot.server.drain_seconds
        log.info("stopping: %d requests have %g s to finish", lifecycle.running_requests, seconds)
        try:
            await asyncio.wait_for(lifecycle.wait_until_idle(), seconds)
        except TimeoutError:
            log.warning("stopping: %d requests were cut off", lifecycle.running_requests)
        self._service.engine.fail_all(
            errors.unavailable("this pod stopped before the response was complete", "draining", 1)
        )


async def _repeat(check: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        await check()


async def run(
    boot: EngineBoot,
    load: Load,
    sock: socket.socket,
    on_failure: OnFailure,
    reread: ReadBoot | None = None,
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
    on_failure: OnFailure = lambda error: None,
    reread: ReadBoot | None = None,
) -> int:
    """Listen at once, load the engine, serve until a signal; return the exit code of the process.

    The arguments are those of `Service`.
    """
    sock = listen(boot.server.host, boot.server.port)
    host, port = sock.getsockname()[:2]
    log.info("listening on %s port %d", host, port)
    # Every token is a message: uvloop and httptools send twice as many as the defaults.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code, has_ended = runner.run(run(boot, load, sock, on_failure, reread))
    if not has_ended:
        log.warning("the engine thread is still busy; the process ends without it")
    if code or not has_ended:
        # After an error of the GPU the interpreter could hang while it destroys tensors.
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
