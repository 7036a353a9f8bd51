"""How the operator connects: without what costs more than a request, and Kopf without copies."""

import kopf
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from specdecode_operator.cluster.kube_api import KubeApiError, load_configuration, open_api
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.cluster.watching import kopf_settings


def write_kubeconfig(path, server):
    cluster = {"name": "c", "cluster": {"server": server}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    config = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "x"}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **config}))
    return str(path)


@pytest.mark.parametrize("body", [b"<html>maintenance</html>", b'{"items": [', b"\xff"])
async def test_a_load_balancer_that_answers_in_place_of_the_api_server_is_an_outage(tmp_path, body):
    async def answer(_request):
        return web.Response(body=body)

    application = web.Application()
    application.router.add_get("/api/v1/pods", answer)
    async with TestServer(application) as server:
        file = write_kubeconfig(tmp_path / "kubeconfig", str(server.make_url("")))
        async with open_api(file, Metrics("test"), 5.0) as api:
            with pytest.raises(KubeApiError, match="GET /api/v1/pods") as refused:
                await api.request("GET", "/api/v1/pods")
    assert refused.value.is_transient


async def test_no_request_looks_for_proxies_or_a_netrc(tmp_path):
    file = write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:1")
    configuration = await load_configuration(file)
    assert configuration.host == "http://127.0.0.1:1"
    assert configuration.client_session_kwargs == {"trust_env": False}


def test_watches_are_soon_back_after_an_outage_and_outlast_minutes():
    pauses = kopf_settings().networking.error_backoffs
    assert isinstance(pauses, tuple)
    assert max(pauses) <= 2
    assert sum(pauses) >= 150


def test_kopf_keeps_no_copy_of_objects():
    storage = kopf_settings().persistence.diffbase_storage
    body = kopf.Body({"metadata": {"name": "chat"}, "spec": {"replicas": 2}})
    assert storage.build(body=body) == {}
    assert storage.fetch(body=body) is None
    patch = kopf.Patch()
    storage.store(body=body, patch=patch, essence=storage.build(body=body))
    assert not patch
