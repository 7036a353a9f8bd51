"""Whatever ends a watch, Kopf opens it again: every watched kind, next to a server that fails."""

import asyncio
import json
from collections import Counter
from contextlib import asynccontextmanager
from typing import Any

import kopf
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from kopf._cogs.clients import errors
from kopf._cogs.clients import watching as kopf_watching

from specdecode_operator.cluster import watching
from specdecode_operator.cluster.watching import ends_only_a_watch, open_watches
from specdecode_operator.objects.kinds import WATCHED, ResourceKind
from specdecode_operator.settings import Settings

NAMESPACE = ResourceKind("", "v1", "Namespace", "namespaces", ())
"""Kopf waits for it, and watches none."""
VERBS = ["get", "list", "watch", "patch"]


def error(code, **more):
    status = {"kind": "Status", "code": code, "reason": "Reason", "message": "made up", **more}
    return json.dumps({"type": "ERROR", "object": status}) + "\n"


WATCHES = (
    error(410),
    error(429, details={"retryAfterSeconds": 1}),
    error(500),
    error(504),
    error(None),
    '{"type": "ERROR", "object": {}}\n',
    '{"type": "ERROR", "object": null}\n',
    '{"object": {}}\n',
    '{"type": "MODIFIED", "obj',
    "<html>maintenance</html>\n",
)
"""What the server sends in one watch after the other; then it sends an object."""

LISTS = (500, 504, 200, 410)
"""Statuses of the first lists of a kind; 410 is that of the second page of the third."""


class FailingServer:
    """Serves the watched kinds; the lists and watches of each fail in turn."""

    def __init__(self):
        self.watches: Counter[str] = Counter()
        self.lists: Counter[str] = Counter()
        self.complete_lists = 0

    async def answer(self, request):
        documents = discovery()
        if request.path in documents:
            return web.json_response(documents[request.path])
        if request.query.get("watch") == "true":
            return await self.stream(request)
        turn = self.lists[request.path]
        self.lists[request.path] += 1
        status = LISTS[turn] if turn < len(LISTS) else 200
        has_more = turn < len(LISTS)
        metadata = {"resourceVersion": "7", **({"continue": "token"} if has_more else {})}
        body = {"kind": "Status", "code": status, "metadata": metadata, "items": []}
        return web.json_response(body, status=status)

    def count_list(self):
        self.complete_lists += 1

    async def stream(self, request):
        turn = self.watches[request.path]
        self.watches[request.path] += 1
        if turn < len(WATCHES):
            return web.Response(text=WATCHES[turn])
        response = web.StreamResponse()
        await response.prepare(request)
        manifest = {"metadata": {"name": "a", "uid": request.path, "resourceVersion": "8"}}
        event = {"type": "ADDED", "object": manifest}
        await response.write(json.dumps(event).encode() + b"\n")
        await asyncio.Event().wait()


def discovery():
    """The documents of an API server that has the watched kinds and no other."""
    documents: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for kind in (NAMESPACE, *WATCHED):
        path = kind.path(None).rpartition("/")[0]
        known = documents.setdefault(path, {"groupVersion": kind.api_version, "resources": []})
        names = {"name": kind.plural, "singularName": kind.kind.lower(), "kind": kind.kind}
        is_namespaced = kind is not NAMESPACE
        known["resources"].append({**names, "namespaced": is_namespaced, "verbs": VERBS})
        if kind.group:
            version = {"groupVersion": kind.api_version, "version": kind.version}
            groups[kind.group] = {
                "name": kind.group, "versions": [version], "preferredVersion": version,
            }  # fmt: skip
    documents["/api"] = {"versions": ["v1"]}
    documents["/apis"] = {"groups": list(groups.values())}
    return documents


@pytest.fixture
def quick(monkeypatch):
    """Pauses of 10 ms, so that a test needs no seconds."""
    made = watching.kopf_settings

    def settings(*arguments):
        found = made(*arguments)
        found.watching.reconnect_backoff = 0.01
        found.queueing.idle_timeout = 0.01
        found.networking.error_backoffs = ()
        return found

    monkeypatch.setattr(watching, "kopf_settings", settings)
    monkeypatch.setattr(watching, "WATCH_PAUSE_S", 0.01)


@asynccontextmanager
async def watched(failing, handle):
    """Watch on the server; yields the running watch and the event that ends it."""
    registry, stop = kopf.OperatorRegistry(), asyncio.Event()
    for kind in WATCHED:
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(handle)
    application = web.Application()
    application.router.add_get("/{path:.*}", failing.answer)
    async with TestServer(application) as server:
        address = kopf.ConnectionInfo(server=str(server.make_url("")))
        kopf.on.login(registry=registry)(lambda **_: address)
        settings = Settings(engine_image="engine:1", health_port=unused_port())
        yield asyncio.create_task(run(registry, settings, stop, failing)), stop


async def run(registry, settings, stop, failing):
    """Watch until `stop` is set."""
    async with open_watches(registry, settings, stop, failing.count_list):
        await stop.wait()


async def test_every_watch_restarts_when_an_event_is_an_error(quick):
    seen, is_complete = set(), asyncio.Event()
    failing = FailingServer()

    async def handle(resource, **_):
        seen.add(resource.plural)
        if len(seen) == len(WATCHED):
            is_complete.set()

    async with watched(failing, handle) as (running, stop):
        complete = asyncio.create_task(is_complete.wait())
        await asyncio.wait({running, complete}, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert not running.done(), running.exception()
        assert complete.done(), failing.watches
        stop.set()
        await running
    assert seen == {kind.plural for kind in WATCHED}
    watches = len(WATCHES) + 1
    assert failing.watches == {kind.path(None): watches for kind in WATCHED}
    assert failing.lists == {kind.path(None): watches + len(LISTS) for kind in WATCHED}
    assert failing.complete_lists == watches * len(WATCHED)


async def test_watches_end_though_each_loses_its_cancellation(quick, monkeypatch, caplog):
    original, lost, seen = kopf_watching.continuous_watch, set(), set()
    is_complete = asyncio.Event()
    monkeypatch.setattr(watching, "CANCEL_AGAIN_S", 0.2)

    async def losing(**arguments):
        try:
            async for event in original(**arguments):
                yield event
        except asyncio.CancelledError:
            if arguments["resource"] in lost:
                raise
            lost.add(arguments["resource"])

    async def handle(resource, **_):
        seen.add(resource)
        if len(seen) == len(WATCHED):
            is_complete.set()

    monkeypatch.setattr(kopf_watching, "continuous_watch", losing)
    async with watched(FailingServer(), handle) as (running, stop):
        async with asyncio.timeout(60):
            await is_complete.wait()
            stop.set()
            await running
    assert len(lost) == len(WATCHED)
    assert "a task of Kopf is cancelled again" in caplog.text


@pytest.mark.parametrize(("kind", "status", "restarts"), [
    (errors.APIClientError, 400, False),
    (errors.APIForbiddenError, 403, False),
    (errors.APINotFoundError, 404, False),
    (errors.APIClientError, 410, True),
    (errors.APIServerError, 500, True),
    (errors.APIServerError, 504, True),
])  # fmt: skip
def test_a_watch_restarts_unless_a_right_or_a_crd_is_missing(kind, status, restarts):
    assert ends_only_a_watch(kind(None, status=status, headers={})) is restarts


def test_the_process_ends_when_credentials_are_refused():
    assert not ends_only_a_watch(kopf.LoginError("no credentials are left"))
