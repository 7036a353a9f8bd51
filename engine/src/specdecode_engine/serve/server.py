"""Runs the HTTP server of one engine until a signal or a failure ends the process."""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn
import uvloop

from specdecode_api.boot import EngineBoot
from specdecode_engine.serve import errors
from specdecode_engine.serve.app import build_app
from specdecode_engine.serve.control.drain import answering_drain
from specdecode_engine.serve.control.tables import ReadBoot
from specdecode_engine.serve.engine.core import Load
from specdecode_engine.serve.engine.messages import Connect
from specdecode_engine.serve.listeners import Listeners
from specdecode_engine.serve.openai.service import OnFailure, Service
from specdecode_engine.serve.openai.tracing import TracingUnavailable
from specdecode_server.api_keys import Digests, NoApiKeys
from specdecode_server.connection import LimitedConfig
from specdecode_server.listen import ListenError

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
FLUSH_SECONDS = 5
WATCH_SECONDS = 2.0
JOIN_SECONDS = 5.0


class SignalledServer(uvicorn.Server):
    """Uvicorn whose signals go to the service's lifecycle."""

    def __init__(self, service: Service, listeners: Listeners) -> None:
        server = service.boot.server
        config = LimitedConfig(
            build_app(service, listeners.management_port),
            server.request_headers_timeout_seconds,
            server.request_body_timeout_seconds,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,  # a header must not replace the peer's address
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FLUSH_SECONDS,
        )
        super().__init__(config)
        service.api_port = int(listeners.api.getsockname()[1])
        self._service = service
        self._listeners = listeners
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGTERM or SIGINT: the first one stops gracefully, the second one at once."""
        self._loop.call_soon_threadsafe(self._service.lifecycle.stop)

    async def run_until_end(self) -> int:
        """Serve until stopped or failed; return the exit code of the process."""
        self._service.engine.start()
        ending = asyncio.create_task(self._end())
        watch = self._service.watch
        tokens = self._service.router_tokens
        checks = [self._service.sample_rates, self._service.refresh_keys]
        checks += [self._service.expire_responses]
        checks += [watch.check] if watch else []
        checks += [tokens.refresh] if tokens else []
        watching = [asyncio.create_task(_repeat(check)) for check in checks]
        async with answering_drain(self._service.lifecycle, self._listeners.drain):
            await self.serve(sockets=self._listeners.http)
        for task in watching:
            task.cancel()
        self._service.grammars.close()
        if self._service.tracing is not None:
            await asyncio.to_thread(self._service.tracing.close)
        return await ending

    async def _end(self) -> int:
        lifecycle = self._service.lifecycle
        await lifecycle.wait_for_end()
        self._service.fail_if_late()
        for connection in tuple(self.server_state.connections):
            connection.shutdown()  # at once when idle, else after the current response
        if lifecycle.failure is None:
            await self._drain()
        if self._service.responses is not None:
            self._service.responses.clear()
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
    """Check for ever: a check that fails must not end the watch of keys or tables."""
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            await check()
        except Exception:
            log.exception("a check failed; it is repeated")


async def run(
    boot: EngineBoot,
    load: Load,
    listeners: Listeners,
    on_failure: OnFailure,
    reread: ReadBoot | None = None,
    on_loaded: Callable[[], None] = lambda: None,
    connect: Connect | None = None,
    api_keys: Digests = frozenset(),
) -> tuple[int, bool]:
    """Serve on open sockets; return the exit code and whether the engine thread has ended."""
    try:
        service = Service(
            boot,
            load,
            reread,
            on_failure=on_failure,
            on_loaded=on_loaded,
            connect=connect,
            api_keys=api_keys,
        )
    except (NoApiKeys, TracingUnavailable) as error:
        log.error("cannot serve: %s", error)
        on_failure(error)
        return 1, True
    code = await SignalledServer(service, listeners).run_until_end()
    return code, await service.engine.close(JOIN_SECONDS)


def serve(
    boot: EngineBoot,
    load: Load,
    on_failure: OnFailure = lambda error: None,
    reread: ReadBoot | None = None,
    on_loaded: Callable[[], None] = lambda: None,
    connect: Connect | None = None,
    api_keys: Digests = frozenset(),
) -> int:
    """Listen at once, load the engine, serve until a signal; return the exit code of the process.

    The arguments are those of `Service`.
    """
    try:
        listeners = Listeners.open(boot.server)
    except ListenError as error:
        log.error("cannot serve: %s", error)
        on_failure(error)
        return 1
    try:
        # Every token is a message: uvloop and httptools send twice as many as the defaults.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code, has_ended = runner.run(
                run(boot, load, listeners, on_failure, reread, on_loaded, connect, api_keys)
            )
    finally:
        listeners.close()
    if not has_ended:
        log.warning("the engine thread is still busy; the process ends without it")
    if code or not has_ended:
        # After an error of the GPU the interpreter could hang while it destroys tensors.
        logging.shutdown()
        os._exit(code)
    return code
