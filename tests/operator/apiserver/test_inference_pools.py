"""InferencePools on a real API server, with the CRD of the Gateway API Inference Extension."""

from pathlib import Path

import pytest
import yaml

from specdecode_api import names
from specdecode_operator.objects.kinds import (
    CHILDREN,
    DEPLOYMENT,
    INFERENCE_POOL,
    RESOURCE,
    SERVICE,
    ResourceKind,
)
from specdecode_operator.objects.observed import Key

pytestmark = pytest.mark.apiserver

FILE = Path(__file__).parent / "fixtures" / "inferencepools.yaml"
CRD = ResourceKind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", ()
)
NAME = f"{INFERENCE_POOL.plural}.{INFERENCE_POOL.group}"
POOL = {"endpointPickerRef": {"name": "chat-epp"}}


@pytest.fixture(scope="module")
def operator(kubeconfig, tmp_path_factory, until, make_operator):
    log = tmp_path_factory.mktemp("operator") / "log"
    started = make_operator(kubeconfig, log, ("--all-namespaces", "--resync-seconds", "5"))
    started.start(until)
    yield started
    assert started.stop() == 0
    log = started.log.read_text()
    assert "Traceback" not in log, log
    assert "is forbidden" not in log, log


@pytest.fixture
def uninstall(api, until):
    """Remove the CRD, if it is there."""
    if api.get(CRD, None, NAME) is not None:
        api.delete(CRD, None, NAME)
    until(lambda: api.get(CRD, None, NAME) is None)


@pytest.fixture
def install(api, until):
    """Install the CRD, if it is not there."""

    def installed():
        if api.get(CRD, None, NAME) is None:
            api.create(CRD, yaml.safe_load(FILE.read_text()))
        until(lambda: api.client.get(INFERENCE_POOL.path(None)).is_success)

    return installed


@pytest.fixture
def pool(api, namespace):
    """Read the InferencePool of the test's resource."""
    return lambda: api.get(INFERENCE_POOL, namespace, "chat")


def test_without_the_crd_engines_are_deployed_and_the_pool_follows_once_it_is_installed(
    operator, api, namespace, chat, until, condition, uninstall, install, pool
):
    chat(inferencePool=POOL)
    until(lambda: condition("InferencePoolReady")[1] == "CRDNotInstalled")
    status, reason, message = condition("Degraded")
    assert (status, reason) == ("True", "CRDNotInstalled")
    assert "install the CRDs of the Gateway API Inference Extension" in message
    for kind in CHILDREN:
        if kind.kind != "PodDisruptionBudget":
            assert api.items(kind, namespace), kind.kind
    install()
    until(pool)
    until(lambda: condition("InferencePoolReady")[:2] == ("True", "NoGateway"))
    assert condition("Degraded")[0] == "False"


def test_a_pool_is_owned_repaired_and_removed(
    operator, api, namespace, chat, until, condition, install, pool
):
    install()
    uid = chat(inferencePool=POOL)["metadata"]["uid"]
    made = until(pool)
    service = api.get(SERVICE, namespace, "chat")
    assert made["metadata"]["ownerReferences"][0]["uid"] == uid
    assert {each["manager"] for each in made["metadata"]["managedFields"]} == {names.FIELD_MANAGER}
    wanted = {
        "appProtocol": "http",
        "endpointPickerRef": {
            "group": "",
            "kind": "Service",
            "name": "chat-epp",
            "port": {"number": 9002},
            "failureMode": "FailClose",
        },
        "selector": {"matchLabels": service["spec"]["selector"]},
        "targetPorts": [{"number": names.ENGINE_PORT}],
    }
    assert made["spec"] == wanted
    for edit in (
        {"targetPorts": [{"number": 1}]},
        {"endpointPickerRef": {"failureMode": "FailOpen"}},
        {"selector": {"matchLabels": {"team": "a"}}},
        {"selector": {"matchLabels": {names.LABEL_COMPONENT: None}}},
    ):
        assert api.merge(INFERENCE_POOL, namespace, "chat", {"spec": edit})["spec"] != wanted
        until(lambda: pool()["spec"] == wanted)
    api.delete(INFERENCE_POOL, namespace, "chat")
    until(lambda: pool()["spec"] == wanted)
    picker = {"name": "other", "port": {"number": 9100}, "failureMode": "FailOpen"}
    changed = {"spec": {"inferencePool": {"endpointPickerRef": picker}}}
    api.merge(RESOURCE, namespace, "chat", changed)
    until(lambda: picker.items() <= pool()["spec"]["endpointPickerRef"].items())
    before = api.get(DEPLOYMENT, namespace, "chat")["metadata"]["generation"]
    api.merge(RESOURCE, namespace, "chat", {"spec": {"inferencePool": None}})
    until(lambda: pool() is None)
    until(lambda: "InferencePoolReady" not in _types(api, namespace))
    assert api.get(DEPLOYMENT, namespace, "chat")["metadata"]["generation"] == before


def test_a_pool_goes_with_its_resource(operator, api, namespace, chat, until, install, pool):
    install()
    chat(inferencePool=POOL)
    until(pool)
    api.delete(RESOURCE, namespace, "chat")
    until(lambda: pool() is None)


def test_a_gateways_report_is_in_the_condition(
    operator, api, namespace, chat, until, condition, install, pool
):
    install()
    chat(inferencePool=POOL)
    until(pool)
    for kind, status, expected in (
        ("Accepted", "True", ("True", "Accepted")),
        ("ResolvedRefs", "False", ("False", "ReferencesNotResolved")),
    ):
        report = {
            "type": kind,
            "status": status,
            "reason": "Tested",
            "message": "a test",
            "lastTransitionTime": "2026-11-27T12:00:00Z",
        }
        parents = [{"parentRef": {"name": "web"}, "conditions": [report]}]
        patch = {"status": {"parents": parents}}
        api.merge(INFERENCE_POOL, namespace, "chat", patch, "/status")
        until(lambda expected=expected: condition("InferencePoolReady")[:2] == expected)
    assert condition("Degraded")[1] == "ReferencesNotResolved"


def test_a_pool_of_somebody_else_stays_and_is_reported(
    operator, api, namespace, chat, until, condition, install, pool
):
    install()
    spec = {
        "selector": {"matchLabels": {"app": "other"}},
        "targetPorts": [{"number": 8000}],
        "endpointPickerRef": {"name": "other", "port": {"number": 9002}},
    }
    head = {"apiVersion": INFERENCE_POOL.api_version, "kind": INFERENCE_POOL.kind}
    metadata = {"name": "chat", "namespace": namespace}
    before = api.create(INFERENCE_POOL, {**head, "metadata": metadata, "spec": spec})
    chat(inferencePool=POOL)
    until(lambda: condition("InferencePoolReady")[:2] == ("False", "NameConflict"))
    assert pool() == before
    assert api.get(DEPLOYMENT, namespace, "chat")
    api.merge(RESOURCE, namespace, "chat", {"spec": {"inferencePool": None}})
    until(lambda: "InferencePoolReady" not in _types(api, namespace))
    assert pool() == before
    api.merge(RESOURCE, namespace, "chat", {"spec": {"inferencePool": POOL}})
    api.delete(INFERENCE_POOL, namespace, "chat")
    until(lambda: condition("InferencePoolReady")[0] == "True")


@pytest.fixture(scope="module")
def without_pools(grant, template):
    """Credentials of an operator whose chart permits no InferencePools."""
    flags = "fullnameOverride=no-pools,crds.install=false,rbac.aggregate=false"
    return grant(template("--set", f"{flags},inferencePool.enabled=false"))


async def test_a_missing_permission_is_reported_and_engines_are_deployed(
    operator, without_pools, parts, api, namespace, chat, until, condition, install, pool
):
    """An operator does not start without it; it may be lost later."""
    install()
    operator.stop()  # it would write the InferencePool
    chat(inferencePool=POOL)
    async with parts(credentials=without_pools) as started:
        started.resync.kinds += (INFERENCE_POOL,)
        await started.resync.once()  # as a kind that resources can do without, it may be denied
        wait_s = await started.reconcile(Key(namespace, "chat"))
    status, reason, message = condition("InferencePoolReady")
    assert (status, reason) == ("False", "Forbidden")
    assert f"create, delete, get, list, patch on {NAME}" in message
    assert pool() is None
    assert wait_s is not None, "it is tried again"
    assert api.get(DEPLOYMENT, namespace, "chat")
    operator.start(until)


def _types(api, namespace):
    status = api.get(RESOURCE, namespace, "chat")["status"]
    return {each["type"] for each in status["conditions"]}
