"""Runs the router until a signal ends it."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator
from importlib.metadata import version

import uvicorn
import uvloop
from starlette.types import ASGIApp

from specdecode_router.app import RouterManagement, build_app
from specdecode_router.discovery import discover
from specdecode_router.engines import EnginePool
from specdecode_router.metrics import RouterMetrics
from specdecode_router.poller import Poller
from specdecode_router.relay import Relay
from specdecode_router.router_token import RouterToken
from specdecode_router.routing.prefix_table import PrefixTable
from specdecode_router.settings import RouterSettings
from specdecode_router.upstream import UpstreamClient, open_session
from specdecode_server.connection import LimitedConfig
from specdecode_server.lifecycle import ServerLifecycle
from specdecode_server.listen import listen

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
FLUSH_SECONDS = 5


class QuietServer(uvicorn.Server):
    """Uvicorn without signal handlers of its own."""

    @contextlib.contextmanager
    def capture_signals(self):  # type: ignore[no-untyped-def]
        yield


async def run(settings: RouterSettings) -> None:
    """Serve until the second signal, or until running requests have ended after the first one.

    Raises:
        ListenError: a port cannot be listened on.
    """
    api_socket = listen(settings.host, settings.port, "--port", "--host")
    management_socket = listen(
        settings.host, settings.management_port, "--management-port", "--host"
    )
    lifecycle = ServerLifecycle()
    pool = EnginePool(time.monotonic)
    assert settings.token_path is not None
    token = RouterToken(settings.token_path)
    async with open_session() as session:
        relay = _relay(settings, pool, UpstreamClient(session, token))
        api = QuietServer(
            _config(build_app(relay, lifecycle, settings, version("specdecode-router")), settings)
        )
        management = QuietServer(_config(RouterManagement(relay, lifecycle), settings))
        log.info("listening on %s port %d", *api_socket.getsockname()[:2])
        log.info("management on %s port %d", *management_socket.getsockname()[:2])
        async with _background(settings, relay, token):
            serving = [
                asyncio.create_task(api.serve(sockets=[api_socket])),
                asyncio.create_task(management.serve(sockets=[management_socket])),
            ]
            await _serve_until_stopped(settings, lifecycle, api)
            for server in (api, management):
                server.should_exit = True
            await asyncio.gather(*serving)


def _relay(settings: RouterSettings, pool: EnginePool, client: UpstreamClient) -> Relay:
    table = PrefixTable()
    return Relay(pool, table, client, RouterMetrics(pool, table), settings.retries, set())


def _config(app: ASGIApp, settings: RouterSettings) -> LimitedConfig:
    return LimitedConfig(
        app,
        settings.headers_timeout_seconds,
        settings.body_timeout_seconds,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        limit_concurrency=settings.max_connections,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=FLUSH_SECONDS,
    )


@contextlib.asynccontextmanager
async def _background(
    settings: RouterSettings, relay: Relay, token: RouterToken
) -> AsyncIterator[None]:
    """Discover and poll engines, and watch streams and the token, while the body runs."""
    works = (
        discover(settings, relay.pool, relay.metrics.forget),
        Poller(relay.pool, relay.client).run(),
        relay.watch_stalls(),
        token.watch(),
    )
    tasks = [asyncio.create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(_report)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _report(task: "asyncio.Task[None]") -> None:
    """End the process with a task that should not end: Kubernetes starts it again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.critical("the router cannot continue", exc_info=error)
        signal.raise_signal(signal.SIGTERM)


async def _serve_until_stopped(
    settings: RouterSettings, lifecycle: ServerLifecycle, api: QuietServer
) -> None:
    """Serve until a signal, then some seconds more, then until running requests have ended.

    The first signal reports the router as not ready, so that no new connections come; a second one
    ends it at once.
    """
    signals: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signals.put_nowait, number)
    lifecycle.load()
    await signals.get()
    log.info("draining: not ready, and serving for %g s", settings.pre_stop_seconds)
    lifecycle.drain()
    if await _is_signalled(signals, settings.pre_stop_seconds):
        return
    lifecycle.stop()
    for connection in tuple(api.server_state.connections):
        connection.shutdown()
    log.info("stopping: %d requests have %g s", lifecycle.running_requests, settings.drain_seconds)
    idle = asyncio.create_task(lifecycle.wait_until_idle())
    second = asyncio.create_task(signals.get())
    await asyncio.wait(
        {idle, second}, timeout=settings.drain_seconds, return_when=asyncio.FIRST_COMPLETED
    )
    for task in (idle, second):
        task.cancel()
    if lifecycle.running_requests:
        log.warning("stopping: %d requests were cut off", lifecycle.running_requests)


async def _is_signalled(signals: "asyncio.Queue[int]", seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await signals.get()
    except TimeoutError:
        return False
    return True


def serve(settings: RouterSettings) -> None:
    """Serve until the process is stopped; raises as `run`."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings))
