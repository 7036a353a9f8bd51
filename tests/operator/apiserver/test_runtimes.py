"""A resource with runtime VLLM against a real API server: its objects, and a change of runtime."""

import copy

import pytest

from specdecode_api import names
from specdecode_operator.objects.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    OWNED_SELECTOR,
    POD,
    RESOURCE,
    SERVICE,
    TRIAL,
)

pytestmark = pytest.mark.apiserver

VLLM = {"engine": {"runtime": "VLLM"}, "router": {}, "rollout": {"mode": "Manual"}}


@pytest.fixture(scope="module")
def operator(kubeconfig, tmp_path_factory, until, make_operator):
    started = make_operator(kubeconfig, tmp_path_factory.mktemp("operator") / "log")
    started.start(until)
    yield started
    assert started.stop() == 0
    log = started.log.read_text()
    assert "Traceback" not in log, log
    assert "is forbidden" not in log, log


@pytest.fixture
def vllm(chat):
    def create():
        draft = {"algorithm": "EAGLE3", "draft": {"uri": "pvc://models/eagle3"}, "numSteps": 3}
        return chat(model={"uri": "pvc://models/target"}, speculation=draft, **VLLM)

    return create


def container(api, namespace):
    template = api.get(DEPLOYMENT, namespace, "chat")["spec"]["template"]
    return template["spec"]["containers"][0]


def complete(api, namespace):
    """Report the rollout as complete, which no controller does here."""
    live = api.get(DEPLOYMENT, namespace, "chat")
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    status = dict.fromkeys(counts, live["spec"]["replicas"])
    status |= {"observedGeneration": live["metadata"]["generation"]}
    api.merge(DEPLOYMENT, namespace, "chat", {"status": status}, "/status")


def test_a_resource_yields_the_deployment_of_vllm(operator, api, namespace, vllm, until):
    uid = vllm()["metadata"]["uid"]
    until(lambda: api.get(DEPLOYMENT, namespace, "chat"))
    found = container(api, namespace)
    assert found["command"] == ["vllm"]
    assert found["args"][:2] == ["serve", "/models/target/target"]
    assert "--speculative-config" in found["args"]
    assert api.items(CONFIG_MAP, namespace, OWNED_SELECTOR) == []
    (policy,) = api.items(NETWORK_POLICY, namespace, OWNED_SELECTOR)
    assert policy["metadata"]["ownerReferences"][0]["uid"] == uid
    until(lambda: api.get(DEPLOYMENT, namespace, "chat-router"))
    router = api.get(DEPLOYMENT, namespace, "chat-router")["spec"]["template"]["spec"]
    assert "--runtime=vllm" in router["containers"][0]["args"]
    engines = api.get(SERVICE, namespace, "chat-engines")["spec"]
    assert [port["targetPort"] for port in engines["ports"]] == ["http"]
    assert engines["selector"][names.LABEL_RUNTIME] == "VLLM"


def test_pod_security_restricted_admits_a_pod_of_vllm(operator, api, namespace, vllm, until):
    vllm()
    until(lambda: api.get(DEPLOYMENT, namespace, "chat"))
    template = copy.deepcopy(api.get(DEPLOYMENT, namespace, "chat")["spec"]["template"])
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.client.patch(
        f"/api/v1/namespaces/{namespace}",
        json={"metadata": {"labels": label}},
        headers={"content-type": "application/merge-patch+json"},
    ).raise_for_status()
    metadata = template["metadata"] | {"name": "chat-1", "namespace": namespace}
    pod = {"metadata": metadata, "spec": template["spec"]}
    assert api.create(POD, pod)["metadata"]["name"] == "chat-1"
    root = copy.deepcopy(pod)
    root["metadata"]["name"] = "chat-2"
    root["spec"]["securityContext"]["runAsNonRoot"] = False
    refused = api.client.post(POD.path(namespace), json={"kind": "Pod", "apiVersion": "v1", **root})
    assert refused.status_code == 403
    assert "restricted" in refused.text


def test_a_change_of_runtime_replaces_the_pods(operator, api, namespace, vllm, until):
    vllm()
    until(lambda: api.get(DEPLOYMENT, namespace, "chat"))
    image = container(api, namespace)["image"]
    guarded = {"engine": {"runtime": "Specdecode"}, "rollout": {"editPolicy": "Guarded"}}
    api.merge(RESOURCE, namespace, "chat", {"spec": guarded})
    until(lambda: container(api, namespace)["command"] == ["specdecode-engine"])
    assert container(api, namespace)["image"] != image
    assert len(api.items(NETWORK_POLICY, namespace, OWNED_SELECTOR)) == 1, "pods with vLLM run"
    complete(api, namespace)
    until(lambda: not api.items(NETWORK_POLICY, namespace, OWNED_SELECTOR))
    assert len(api.items(CONFIG_MAP, namespace, OWNED_SELECTOR)) == 1
    engines = api.get(SERVICE, namespace, "chat-engines")["spec"]
    assert names.LABEL_RUNTIME not in engines["selector"]
    immediate = {"engine": {"runtime": "VLLM"}, "rollout": {"editPolicy": "Immediate"}}
    api.merge(RESOURCE, namespace, "chat", {"spec": immediate})
    until(lambda: container(api, namespace)["command"] == ["vllm"])
    assert container(api, namespace)["image"] == image


def test_a_trial_with_another_runtime_is_refused(operator, api, namespace, vllm, until):
    vllm()
    until(lambda: api.get(DEPLOYMENT, namespace, "chat"))
    spec = {"deployment": "chat", "candidate": {"speculation": {"numSteps": 5}}}
    api.create(
        TRIAL,
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND_TRIAL,
            "metadata": {"name": "five", "namespace": namespace},
            "spec": spec,
        },
    )

    def ended():
        (trial,) = api.items(TRIAL, namespace)
        return (trial.get("status") or {}).get("reason") == "RuntimeWithoutTrials"

    until(ended)
