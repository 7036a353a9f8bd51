"""How the operator connects: without what costs more than a request, and Kopf without copies."""

import kopf
import yaml

from specdecode_operator.kube_api import load_configuration
from specdecode_operator.watching import kopf_settings


async def test_no_request_looks_for_proxies_or_a_netrc(tmp_path):
    file = tmp_path / "kubeconfig"
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "x", "context": {"cluster": "c", "user": "u"}}
    users = [{"name": "u", "user": {"token": "t"}}]
    config = {"clusters": [cluster], "contexts": [context], "users": users, "current-context": "x"}
    file.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **config}))
    configuration = await load_configuration(str(file))
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
