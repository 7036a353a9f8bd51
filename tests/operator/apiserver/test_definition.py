"""An operator under a definition that is older than itself, which is then upgraded."""

import copy
import ssl

import httpx
import pytest
import yaml

from specdecode_operator.objects.kinds import RESOURCE

pytestmark = pytest.mark.apiserver

GONE = ("status.selector", "status.address")


@pytest.fixture(scope="module")
def own_plane(tmp_path_factory, plane):
    """A control plane of its own, because its definition is made old; and a client."""
    from localnode.controlplane import ApiServer

    with ApiServer.start(tmp_path_factory.mktemp("old")) as server:
        context = ssl.create_default_context(cafile=str(server.authority_file))
        headers = {"Authorization": f"Bearer {server.admin_token}"}
        with httpx.Client(base_url=server.url, headers=headers, verify=context) as client:
            system = {"metadata": {"name": "specdecode-system"}}
            client.post("/api/v1/namespaces", json=system).raise_for_status()
            yield server, client


def _older(definition):
    """The definition without two fields of the status, one of which scaling needs."""
    older = copy.deepcopy(definition)
    (version,) = older["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    for path in GONE:
        del status["properties"][path.removeprefix("status.")]
    del version["subresources"]["scale"]
    return older


def _put(client, definition):
    answer = client.patch(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + definition["metadata"]["name"],
        params={"fieldManager": "test", "force": "true"},
        headers={"Content-Type": "application/apply-patch+yaml"},
        content=yaml.safe_dump(definition),
    )
    assert answer.is_success, answer.text


def test_it_reports_an_old_definition_writes_nothing_that_is_dropped_and_notices_the_upgrade(
    own_plane, template, make_operator, tmp_path, until, example
):
    server, client = own_plane
    definitions = {
        each["spec"]["names"]["kind"]: each
        for each in template()
        if each["kind"] == "CustomResourceDefinition"
    }
    definition = definitions.pop(RESOURCE.kind)
    for other in definitions.values():
        _put(client, other)
    _put(client, _older(definition))
    until(lambda: client.get(RESOURCE.path("default")).is_success)
    log = tmp_path / "log"
    arguments = ("--all-namespaces", "--resync-seconds", "5")
    operator = make_operator(server.kubeconfig, log, arguments)
    operator.start(until)
    try:
        manifest = example()
        manifest["metadata"] = {"name": "chat", "namespace": "default"}
        client.post(RESOURCE.path("default"), json=manifest).raise_for_status()

        def status():
            return client.get(RESOURCE.path("default", "chat")).json()["status"]

        def current():
            conditions = status()["conditions"]
            return next((e for e in conditions if e["type"] == "DefinitionCurrent"), None)

        reported = until(current)
        assert (reported["status"], reported["reason"]) == ("False", "DefinitionOutdated")
        assert "drops or rejects status.selector, status.address; upgrade it" in reported["message"]
        assert operator.metric("definition_lacking_fields") == 2
        assert "the CRD is outdated" in log.read_text()
        assert status().keys().isdisjoint({"address", "selector"})
        written = operator.metric("status_write_total")
        done = operator.metric("reconcile_total")
        until(lambda: operator.metric("reconcile_total") >= done + 2)  # by resyncs
        assert operator.metric("status_write_total") == written, "it writes what is dropped"

        _put(client, definition)
        until(lambda: current() is None)
        until(lambda: status()["address"]["url"] == "http://chat.default.svc")
        assert operator.metric("definition_lacking_fields") == 0
        assert "the CRD is current again" in log.read_text()
    finally:
        assert operator.stop() == 0
