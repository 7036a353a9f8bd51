"""An operator behind a faulty road to a real API server: whatever happens, it ends converged.

Its resyncs come every three seconds here; what only a resync mends takes up to five minutes with
the chart's defaults.
"""

import asyncio
import itertools
import json
import ssl
import threading
from dataclasses import dataclass, field

import aiohttp
import pytest
import yaml
from aiohttp import web

from specdecode_operator import kinds
from specdecode_operator.kinds import CHILDREN, CONFIG_MAP, DEPLOYMENT, RESOURCE

pytestmark = pytest.mark.apiserver

HOP = {"host", "content-length", "transfer-encoding", "connection", "content-encoding"}


@dataclass
class Road:
    """A proxy in front of the API server; tests change its faults while it runs."""

    target: str
    tls: ssl.SSLContext
    refuse: object = None  # (method, path) to a status to answer with, or None
    is_deaf: bool = False  # watches stay open and say nothing
    expire_watches: bool = False  # open watches end, new ones are answered with 410 at once
    delay_s: float = 0.0
    refused: list = field(default_factory=list)

    async def handle(self, request):
        await asyncio.sleep(self.delay_s)
        is_watch = request.query.get("watch") == "true"
        if is_watch and self.expire_watches:
            status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"}
            self.refused.append(410)
            return web.Response(text=json.dumps({"type": "ERROR", "object": status}) + "\n")
        code = self.refuse(request.method, request.path) if self.refuse else None
        if code:
            self.refused.append(code)
            body = {"kind": "Status", "code": code, "message": "made up"}
            return web.json_response(body, status=code, headers={"Retry-After": "1"})
        return await self.forward(request, is_watch)

    async def forward(self, request, is_watch):
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP}
        body = await request.read() or None
        timeout = aiohttp.ClientTimeout(total=None)
        async with (
            aiohttp.ClientSession(timeout=timeout, skip_auto_headers=["Content-Type"]) as session,
            session.request(
                request.method, self.target + request.path_qs, headers=headers, data=body,
                ssl=self.tls,
            ) as answer,
        ):  # fmt: skip
            head = {k: v for k, v in answer.headers.items() if k.lower() not in HOP}
            response = web.StreamResponse(status=answer.status, headers=head)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                if is_watch and self.expire_watches:
                    break  # those that were open end with the next event, which is lost
                if not (is_watch and self.is_deaf):
                    await response.write(piece)
            return response


@pytest.fixture
def road(plane):
    """A running proxy; `road.port` is where."""
    found = Road(plane.url, ssl.create_default_context(cafile=str(plane.authority_file)))
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def serve():
        application = web.Application(client_max_size=2**24)
        application.router.add_route("*", "/{path:.*}", found.handle)
        runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        found.port = site._server.sockets[0].getsockname()[1]
        ready.set()
        return runner

    def run():
        asyncio.set_event_loop(loop)
        found.runner = loop.run_until_complete(serve())
        loop.run_forever()
        loop.run_until_complete(found.runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(10)
    yield found
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


@pytest.fixture
def operator(road, kubeconfig, tmp_path, make_operator, until, namespace):
    """An operator that knows only the road, and resyncs often."""
    config = yaml.safe_load(kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{road.port}"}
    file = tmp_path / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    arguments = ("--all-namespaces", "--resync-seconds", "3")
    started = make_operator(file, tmp_path / "log", arguments)
    started.start(until)
    yield started
    assert started.stop() == 0
    assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.fixture
def converged(api, namespace, until, condition):
    """Wait until a resource's children all exist and its status says so, about its newest spec."""

    def wait(name="chat"):
        def look():
            assert condition("ConfigResolved", name)[0] == "True"
            assert condition("Ready", name)[1] == "Starting"
            found = {
                kind.kind for kind in CHILDREN if api.items(kind, namespace, kinds.OWNED_SELECTOR)
            }
            assert len(found) == len(CHILDREN)
            return True

        return until(look)

    return wait


@pytest.mark.parametrize("code", [409, 422, 429, 500, 503])
def test_writes_that_are_refused_now_and_then(code, road, operator, chat, converged):
    turns = itertools.count()
    road.refuse = lambda method, _: code if method == "PATCH" and next(turns) % 3 == 0 else None
    chat(replicas=2)
    converged()
    assert code in road.refused


def test_watches_that_expire_at_once_and_for_long(
    road, operator, chat, converged, api, namespace, until
):
    road.expire_watches = True
    chat(replicas=2)
    converged()  # by lists alone
    until(lambda: 410 in road.refused)
    road.expire_watches = False
    api.delete(DEPLOYMENT, namespace, "chat")
    converged()


def test_watches_that_fall_silent(road, operator, chat, converged, api, namespace, until):
    chat(replicas=2)
    converged()
    road.is_deaf = True
    api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 64}})
    until(lambda: len(api.items(CONFIG_MAP, namespace, kinds.OWNED_SELECTOR)) == 2)
    converged()


def test_a_slow_api_server(road, operator, chat, converged):
    road.delay_s = 0.5
    chat(replicas=2)
    converged()
