"""Runs the router until a signal ends it."""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Iterable
from functools import partial
from importlib.metadata import version
from typing import Any

import aiohttp
import uvicorn
import uvloop
from starlette.types import ASGIApp

from specdecode_router.app import AnyRelay, RouterManagement, build_app
from specdecode_router.discovery import discover
from specdecode_router.engines import EnginePool
from specdecode_router.metrics import RouterMetrics
from specdecode_router.plain.poll import read_plain_state
from specdecode_router.plain.relay import PlainRelay
from specdecode_router.poller import Poller
from specdecode_router.relay import Relay
from specdecode_router.router_token import RouterToken
from specdecode_router.routing.prefix_table import PrefixTable
from specdecode_router.settings import EngineRuntime, RouterSettings
from specdecode_router.upstream import UpstreamClient, open_session
from specdecode_server.api_keys import ApiKeyStore
from specdecode_server.connection import LimitedConfig
from specdecode_server.lifecycle import ServerLifecycle
from specdecode_server.listen import listen

log = logging.getLogger(__name__)

KEEP_ALIVE_SECONDS = 75
KEYS_PERIOD_SECONDS = 2.0

Work = Coroutine[Any, Any, None]
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
    keys = ApiKeyStore(settings.api_keys_path) if settings.api_keys_path else None
    async with open_session() as session:
        relay, works = _relay(settings, pool, session)
        if keys is not None:
            works = (*works, watch_keys(keys))
        release = version("specdecode-router")
        api = QuietServer(_config(build_app(relay, lifecycle, settings, release, keys), settings))
        management = QuietServer(_config(RouterManagement(relay, lifecycle), settings))
        log.info("listening on %s port %d", *api_socket.getsockname()[:2])
        log.info("management on %s port %d", *management_socket.getsockname()[:2])
        async with _background(works):
            serving = [
                asyncio.create_task(api.serve(sockets=[api_socket])),
                asyncio.create_task(management.serve(sockets=[management_socket])),
            ]
            await _serve_until_stopped(settings, lifecycle, api)
            for server in (api, management):
                server.should_exit = True
            await asyncio.gather(*serving)


def _relay(
    settings: RouterSettings, pool: EnginePool, session: aiohttp.ClientSession
) -> tuple[AnyRelay, tuple[Work, ...]]:
    """Return what relays calls, and the work that it needs in the background."""
    table = PrefixTable()
    metrics = RouterMetrics(pool, table)
    discovered = discover(settings, pool, metrics.forget)
    if settings.runtime is EngineRuntime.VLLM:
        plain = PlainRelay(pool, table, session, metrics, settings.retries, set())
        poller = Poller(pool, partial(read_plain_state, session), polls_removed=True)
        return plain, (discovered, poller.run(), plain.watch_silence())
    assert settings.token_path is not None
    token = RouterToken(settings.token_path)
    client = UpstreamClient(session, token)
    relay = Relay(pool, table, client, metrics, settings.retries, set())
    polled = Poller(pool, client.poll).run()
    return relay, (discovered, polled, relay.watch_stalls(), token.watch())


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
async def _background(works: Iterable[Work]) -> AsyncIterator[None]:
    """Discover and poll engines, and watch streams, token and keys, while the body runs."""
    tasks = [asyncio.create_task(work) for work in works]
    for task in tasks:
        task.add_done_callback(_report)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def watch_keys(keys: ApiKeyStore) -> None:
    """Read the keys of clients again every two seconds."""
    while True:
        await asyncio.sleep(KEYS_PERIOD_SECONDS)
        await keys.refresh()


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
