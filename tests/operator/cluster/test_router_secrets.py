"""The Secret with the tokens of routers, which several workers and operators write at once."""

import asyncio
import base64
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from specdecode_api import names
from specdecode_operator.cluster.cluster import connect
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.cluster.router_secrets import (
    AFTER_CONFLICT_SECONDS,
    LOOK_SECONDS,
    RouterSecrets,
)
from specdecode_operator.cluster.token_rotation import LIFETIME
from specdecode_operator.objects.kinds import SECRET

START = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
PATH = SECRET.path("ns", names.ROUTER_SECRET)


class SecretServer:
    """Stores one Secret by the rules of server-side apply.

    A field has the manager that wrote it last, which is enough where values differ.
    """

    def __init__(self):
        self.stored: Any = None
        self.writes = []
        self.refusal = None
        self._managers = {}
        self._readers = asyncio.Barrier(2)
        self._waiting = 0

    def let_both_read_first(self):
        self._waiting = 2

    async def get(self, _request):
        found = self.stored
        if self._waiting:
            self._waiting -= 1
            await self._readers.wait()
        if found is None:
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response(found)

    async def patch(self, request):
        secret = yaml.safe_load(await request.text())
        if self.refusal:
            return web.json_response({"message": "refused"}, status=self.refusal)
        if self._conflicts(secret, request.query):
            return web.json_response({"message": "conflict"}, status=409)
        self._managers |= dict.fromkeys(secret["data"], request.query["fieldManager"])
        self.writes.append(secret)
        version = {"resourceVersion": str(len(self.writes))}
        self.stored = secret | {"metadata": secret["metadata"] | version}
        return web.json_response(self.stored)

    def _conflicts(self, secret, query):
        if self.stored is None:
            return False
        version = self.stored["metadata"]["resourceVersion"]
        if secret["metadata"].get("resourceVersion", version) != version:
            return True
        if query["force"] == "true":
            return False
        data = self.stored["data"].items()
        changed = {key for key, text in data if secret["data"].get(key, text) != text}
        return any(self._managers[key] != query["fieldManager"] for key in changed)

    def tokens(self):
        return {key: base64.b64decode(text) for key, text in self.stored["data"].items()}


@asynccontextmanager
async def workers(server, folder, now):
    """Two operators, or two workers of one: neither knows what the other has read."""
    application = web.Application()
    application.router.add_get(PATH, server.get)
    application.router.add_patch(PATH, server.patch)
    async with TestServer(application) as running:
        cluster = {"name": "c", "cluster": {"server": str(running.make_url(""))}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
        users = [{"name": "u", "user": {"token": "t"}}]
        parts = {"clusters": [cluster], "contexts": [context], "users": users}
        config = {"apiVersion": "v1", "kind": "Config", **parts, "current-context": "x"}
        file = folder / "kubeconfig"
        file.write_text(yaml.safe_dump(config))
        async with connect(str(file), Metrics("test"), 5.0) as api:
            yield [RouterSecrets(api, now) for _ in range(2)]


async def test_of_two_workers_without_a_secret_one_creates_it_and_the_other_reads_it(tmp_path):
    now, server = [START], SecretServer()
    server.let_both_read_first()
    async with workers(server, tmp_path, lambda: now[0]) as both:
        waits = await asyncio.gather(*(each.ensure("ns") for each in both))
        assert sorted(waits) == [AFTER_CONFLICT_SECONDS, LOOK_SECONDS]
        (first,) = server.writes
        now[0] += timedelta(seconds=LOOK_SECONDS)
        assert [await each.ensure("ns") for each in both] == [LOOK_SECONDS] * 2
        token = server.tokens()[names.ROUTER_TOKEN_KEY].decode()
        assert [each.current("ns") for each in both] == [token] * 2
        assert both[0].current("other") is None
    assert server.writes == [first]
    assert server.stored["data"] == first["data"]


async def test_of_two_workers_that_rotate_one_writes_the_next_token(tmp_path):
    now, server = [START], SecretServer()
    async with workers(server, tmp_path, lambda: now[0]) as both:
        for each in both:
            await each.ensure("ns")
        now[0] += LIFETIME + timedelta(seconds=1)
        server.let_both_read_first()
        await asyncio.gather(*(each.ensure("ns") for each in both))
        _, second = server.writes
        now[0] += timedelta(seconds=LOOK_SECONDS)
        assert [await each.ensure("ns") for each in both] == [LOOK_SECONDS] * 2
    assert server.writes[-1] == second
    assert set(server.tokens()) == {names.ROUTER_TOKEN_KEY, "next"}


async def test_a_secret_that_must_not_be_written_is_an_error_and_tried_again(tmp_path):
    server = SecretServer()
    server.refusal = 403
    async with workers(server, tmp_path, lambda: START) as (worker, _):
        with pytest.raises(KubeApiError, match="refused"):
            await worker.ensure("ns")
        server.refusal = None
        assert await worker.ensure("ns") == LOOK_SECONDS
