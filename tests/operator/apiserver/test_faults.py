"""An operator and a real API server, with injected faults: it always ends converged.

The resync interval is three seconds here; what only a resync fixes takes up to five minutes with
the chart's defaults.
"""

import asyncio
import itertools
import json
import signal
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import httpx
import pytest
import yaml
from aiohttp import web

from specdecode_operator.objects import kinds
from specdecode_operator.objects.kinds import (
    CHILDREN,
    CONFIG_MAP,
    DEPLOYMENT,
    RESOURCE,
    SERVICE,
    TRIAL,
    ResourceKind,
)
from specdecode_operator.objects.observed import Key

pytestmark = pytest.mark.apiserver

SYSTEM = "specdecode-system"
SECRET = ResourceKind("", "v1", "Secret", "secrets", ())
DEFINITION = ResourceKind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", ()
)
OUTAGES_S = (0.0, 4.0)
REACTION_S = 10.0
"""From the first ready answer of a restarted API server until an edit reaches a child."""

WATCH_ERRORS = (410, 429, 500, 504)
"""Codes of ERROR events, of which Kopf expects the first alone."""

HOP = {"host", "content-length", "transfer-encoding", "connection", "content-encoding"}


@dataclass
class Road:
    """A proxy in front of the API server; tests inject faults while it runs."""

    target: str
    tls: ssl.SSLContext
    refuse: Callable[[str, str], int | None] | None = None  # (method, path) to a status, or None
    is_deaf: bool = False  # watches stay open without events
    expire_watches: bool = False  # open watches end, new ones are answered with an error at once
    watch_errors: tuple[int, ...] = (410,)  # codes of these errors, in turn
    delay_s: float = 0.0
    port: int = 0
    refused: list[int] = field(default_factory=list)

    async def handle(self, request):
        await asyncio.sleep(self.delay_s)
        is_watch = request.query.get("watch") == "true"
        if is_watch and self.expire_watches:
            code = self.watch_errors[len(self.refused) % len(self.watch_errors)]
            status = {"kind": "Status", "code": code, "reason": "Reason", "message": "made up"}
            self.refused.append(code)
            return web.Response(text=json.dumps({"type": "ERROR", "object": status}) + "\n")
        refusal = self.refuse(request.method, request.path) if self.refuse else None
        if refusal:
            self.refused.append(refusal)
            body = {"kind": "Status", "code": refusal, "message": "made up"}
            return web.json_response(body, status=refusal, headers={"Retry-After": "1"})
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
        found.port = runner.addresses[0][1]
        ready.set()
        return runner

    def run():
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(serve())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
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
    """Wait until all owned objects exist and the status reports so for the newest spec."""

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


def test_everything_is_refused_now_and_then(road, operator, chat, converged, until):
    turns = itertools.count()
    codes = (429, 500, 503)

    def refuse(method, path):
        turn = next(turns)
        return codes[turn // 7 % len(codes)] if turn % 7 == 0 else None

    road.refuse = refuse
    chat(replicas=2)
    converged()
    until(lambda: set(codes) <= set(road.refused))  # it takes a resync where few requests did
    converged()


def test_watches_that_end_with_errors_at_once_and_for_long(
    road, operator, chat, converged, api, namespace, until
):
    road.expire_watches, road.watch_errors = True, WATCH_ERRORS
    chat(replicas=2)
    converged()  # by lists alone
    until(lambda: set(WATCH_ERRORS) <= set(road.refused))
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


@pytest.mark.parametrize("code", [401, 403])
def test_an_api_server_that_denies_everything_for_seconds(
    code, road, operator, chat, converged, api, namespace, until
):
    """Watches included: they end first, so that Kopf has to open them again."""
    chat("before", replicas=2)
    converged("before")
    road.expire_watches = True
    touch = {"metadata": {"labels": {"touched": "yes"}}}
    api.merge(RESOURCE, namespace, "before", touch)
    until(lambda: 410 in road.refused)
    road.refuse = lambda method, path: code
    road.expire_watches = False
    until(lambda: road.refused.count(code) >= 12)
    road.refuse = None
    chat("after", replicas=2)
    converged("after")
    assert operator.process.poll() is None


def test_a_slow_api_server(road, operator, chat, converged):
    road.delay_s = 0.5
    chat(replicas=2)
    converged()


def test_a_token_that_is_revoked_after_another_was_put_in_its_place(
    road, api, kubeconfig, template, make_operator, tmp_path, namespace, chat, converged, until
):
    """As the kubelet does: the file is rewritten, and later the old token becomes invalid."""
    (deployment,) = (each for each in template() if each["kind"] == "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    secret = api.create(SECRET, {"metadata": {"generateName": "session-", "namespace": SYSTEM}})
    name = secret["metadata"]["name"]
    bound = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": secret["metadata"]["uid"]}

    def token(**spec):
        path = kinds.SERVICE_ACCOUNT.path(SYSTEM, account) + "/token"
        answer = api.client.post(path, json={"kind": "TokenRequest", "spec": spec})
        return answer.json()["status"]["token"]

    file, log = tmp_path / "kubeconfig", tmp_path / "log"

    def write(value):
        config = yaml.safe_load(kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{road.port}"}
        config["users"][0]["user"] = {"token": value}
        file.write_text(yaml.safe_dump(config))

    first = token(boundObjectRef=bound)
    write(first)
    operator = make_operator(file, log, ("--all-namespaces", "--resync-seconds", "3"))
    operator.start(until)
    try:
        chat("before", replicas=2)
        converged("before")
        write(token())
        api.delete(SECRET, SYSTEM, name)
        head = {"Authorization": f"Bearer {first}"}
        path = kinds.RESOURCE.path(None)
        until(lambda: api.client.get(path, headers=head).status_code == 401)
        road.expire_watches = True  # or they would stay open, and nobody would ask who it is
        touch = {"metadata": {"labels": {"touched": "yes"}}}
        api.merge(RESOURCE, namespace, "before", touch)  # they end with the next event
        until(lambda: 410 in road.refused)
        road.expire_watches = False
        chat("after", replicas=2)
        converged("after")
        assert operator.process.poll() is None
        assert operator.metric("api_error_total", code="401") == 0, "renewed within the request"
    finally:
        assert operator.stop() == 0
    assert "Traceback" not in log.read_text()


def test_etcd_is_compacted_while_the_api_server_is_away(
    api, template, make_operator, tmp_path, until, example
):
    """All versions that the operator knows are gone when it comes back to watch from them.

    It is suspended until an owned object is gone, and never receives the deletion event.
    """
    from localnode.controlplane import ApiServer

    definitions = [e for e in template() if e["kind"] == "CustomResourceDefinition"]
    folder = tmp_path / "plane"
    folder.mkdir()
    with ApiServer.start(folder) as server:
        tls = ssl.create_default_context(cafile=str(server.authority_file))
        head = {"Authorization": f"Bearer {server.admin_token}"}
        with httpx.Client(base_url=server.url, headers=head, verify=tls, timeout=30) as client:
            own = type(api)(client)
            system = {"metadata": {"name": SYSTEM}}
            client.post("/api/v1/namespaces", json=system).raise_for_status()
            for definition in definitions:
                own.create(DEFINITION, definition)
            for kind in (RESOURCE, TRIAL):
                until(lambda kind=kind: client.get(kind.path("default")).is_success)
            log = tmp_path / "log"
            arguments = ("--all-namespaces", "--resync-seconds", "300")
            operator = make_operator(server.kubeconfig, log, arguments)
            operator.start(until)
            manifest = example(replicas=2)
            manifest["metadata"] = {"name": "chat", "namespace": "default"}
            old = own.create(RESOURCE, manifest)["metadata"]["resourceVersion"]
            until(lambda: own.get(DEPLOYMENT, "default", "chat"))

            operator.process.send_signal(signal.SIGSTOP)
            words = _kill_api_server(server.plane)
            revision = _compact(server.plane)
            _start_api_server(server.plane, words)
            assert revision >= int(old)
            query = {"resourceVersion": old, "resourceVersionMatch": "Exact"}
            until(lambda: client.get(RESOURCE.path("default"), params=query).status_code == 410)

            own.delete(SERVICE, "default", "chat")
            own.merge(RESOURCE, "default", "chat", {"spec": {"replicas": 3}})
            operator.process.send_signal(signal.SIGCONT)
            until(lambda: own.get(SERVICE, "default", "chat"))
            until(lambda: own.get(DEPLOYMENT, "default", "chat")["spec"]["replicas"] == 3)
            assert operator.metric("missed_delete_total", kind="Service") == 1
            assert operator.stop() == 0
            assert "Traceback" not in log.read_text()


def _kill_api_server(plane):
    """Kill the API server with SIGKILL; returns the command that starts it again."""
    from localnode import processes

    port = f"--secure-port={plane.port}"
    (running,) = processes.find(lambda each: port in (each / "cmdline").read_text())
    words = Path("/proc", str(running.pid), "cmdline").read_text().split("\0")[:-1]
    processes.stop([running])
    return words


def _start_api_server(plane, words):
    """Start the API server and wait until it is ready."""
    again = plane.launcher.launch("kube-apiserver", words)
    plane.launcher.wait(again, plane.admin_client().is_ready, "answer from the API server")


@pytest.mark.parametrize("down_s", OUTAGES_S)
def test_an_operator_outlives_kills_of_the_api_server(
    down_s, start_plane, open_api, grant_on, template, make_operator, tmp_path, until, example
):
    """With real permissions, which an API server denies until it has read them.

    No resync can help within the test: what happens after the restart comes by watches alone.
    """
    with start_plane() as server, open_api(server) as own:
        log = tmp_path / "log"
        arguments = ("--all-namespaces", "--resync-seconds", "300")
        operator = make_operator(grant_on(server, own, template()), log, arguments)
        operator.start(until)
        manifest = example(replicas=2)
        manifest["metadata"] = {"name": "chat", "namespace": "default"}
        own.create(RESOURCE, manifest)
        until(lambda: own.get(DEPLOYMENT, "default", "chat"))
        words = _kill_api_server(server.plane)
        time.sleep(down_s)  # the outage
        _start_api_server(server.plane, words)
        began_s = time.monotonic()
        own.merge(RESOURCE, "default", "chat", {"spec": {"replicas": 3}})
        until(lambda: own.get(DEPLOYMENT, "default", "chat")["spec"]["replicas"] == 3)
        took_s = time.monotonic() - began_s
        print(f"acted on an edit {took_s:.1f} s after the API server was ready")
        assert operator.metric("leader") == 1
        assert operator.stop() == 0
        assert "Traceback" not in log.read_text()
        assert took_s < REACTION_S


def _compact(plane):
    """Have etcd forget all versions but the newest, by the gateway that it serves."""
    folder = plane.authority.folder
    tls = ssl.create_default_context(cafile=str(plane.authority.bundle))
    tls.load_cert_chain(folder / "etcd.crt", folder / "etcd.key")
    url = f"https://{plane.address}:{plane.etcd_port}/v3/kv"
    with httpx.Client(verify=tls, timeout=30) as client:
        newest = client.post(f"{url}/range", json={"key": "AA=="}).json()["header"]["revision"]
        answer = client.post(f"{url}/compaction", json={"revision": newest, "physical": True})
        answer.raise_for_status()
    return int(newest)


async def test_the_clock_on_the_wall_is_set_back_and_forth(parts, chat, api, namespace, condition):
    clock = datetime(2026, 11, 21, tzinfo=UTC)
    key = Key(namespace, "chat")
    chat(replicas=2)
    async with parts(now=lambda: clock) as wired:

        async def reconcile():
            await wired.resync.once()
            await wired.reconcile(key)
            await wired.resync.once()
            wired.requests.methods.clear()
            await wired.reconcile(key)
            assert wired.requests.methods == [], "at rest, whatever the time"

        await reconcile()
        for step, replicas in ((-timedelta(days=1), 3), (timedelta(days=3650), 4)):
            clock += step
            await reconcile()  # the time alone changes nothing
            api.merge(RESOURCE, namespace, "chat", {"spec": {"replicas": replicas}})
            await reconcile()
            assert api.get(DEPLOYMENT, namespace, "chat")["spec"]["replicas"] == replicas
            assert condition("ConfigResolved")[0] == "True"
    conditions = api.get(RESOURCE, namespace, "chat")["status"]["conditions"]
    began = {each["lastTransitionTime"] for each in conditions}
    assert began == {"2026-11-21T00:00:00Z"}, "no condition has changed its status"
