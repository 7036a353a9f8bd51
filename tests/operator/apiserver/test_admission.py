"""Pods of engines and of the operator before Pod Security admission, level "restricted".

As the Deployment controller would create them, by a dry run in a namespace that enforces it.
"""

import ssl

import httpx
import pytest

from specdecode_api import names
from specdecode_operator.objects.kinds import POD

pytestmark = pytest.mark.apiserver

CLAIM, HUB, DRAFT = "pvc://models/target", "hf://org/model@main", "hf://org/draft@main"
EAGLE = {"algorithm": "EAGLE3", "numSteps": 3}
SPECS = {
    "claim on a CPU": {"model": {"uri": CLAIM}},
    "claim on a GPU": {"engine": {"device": "GPU"}, "model": {"uri": CLAIM}},
    "hub on a CPU": {
        "model": {"uri": HUB},
        "speculation": EAGLE | {"draft": {"uri": DRAFT}},
        "download": {"cacheSizeLimit": "4Gi", "tokenSecret": {"name": "hub"}},
    },
    "hub on a GPU, shared cache": {
        "engine": {"device": "GPU"},
        "model": {"uri": HUB},
        "speculation": EAGLE | {"draft": {"uri": DRAFT}},
        "download": {"cacheClaim": "models"},
    },
    "image on a CPU": {"model": {"uri": "oci://registry.example/model:1"}},
    "image on a GPU": {
        "engine": {"device": "GPU"},
        "model": {"uri": "oci://registry.example/model:1"},
    },
}


@pytest.fixture(scope="module")
def restricted(tmp_path_factory, plane):
    """Create a pod of a template in a namespace that enforces a level, by a dry run."""
    from localnode.controlplane import ApiServer

    # The gate is off by default in 1.34; without it image volumes are dropped before admission.
    folder = tmp_path_factory.mktemp("admission")
    with ApiServer.start(folder, feature_gates=["ImageVolume"]) as server:
        context = ssl.create_default_context(cafile=str(server.authority_file))
        headers = {"Authorization": f"Bearer {server.admin_token}"}
        with httpx.Client(base_url=server.url, headers=headers, verify=context) as client:
            for level in ("restricted", "baseline", "privileged"):
                labels = {
                    "pod-security.kubernetes.io/enforce": level,
                    "pod-security.kubernetes.io/enforce-version": "latest",
                }
                body = {"metadata": {"name": level, "labels": labels}}
                client.post("/api/v1/namespaces", json=body).raise_for_status()

            def create(template, level="restricted"):
                metadata = {**template["metadata"], "name": "pod", "namespace": level}
                return client.post(
                    POD.path(level),
                    params={"dryRun": "All", "fieldValidation": "Strict"},
                    json={"metadata": metadata, "spec": template["spec"]},
                )

            yield create


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_an_engine_pod_is_admitted(spec, restricted, example, build):
    template = build(example(**spec))["Deployment"]["spec"]["template"]
    answer = restricted(template)
    assert answer.status_code == 201, answer.text
    volumes = answer.json()["spec"]["volumes"]
    if spec["model"]["uri"].startswith("oci://"):
        assert any("image" in each for each in volumes), "the gate was off"
    containers = answer.json()["spec"].get("initContainers", [])
    assert bool(containers) == spec["model"]["uri"].startswith("hf://")


@pytest.mark.parametrize("level", ["restricted", "baseline"])
def test_a_pod_with_a_folder_of_its_host_is_refused_by_name(level, restricted, example, build):
    spec = {"model": {"uri": "file:///models/target"}}
    answer = restricted(build(example(**spec))["Deployment"]["spec"]["template"], level)
    assert answer.status_code == 403
    message = answer.json()["message"]
    assert f'violates PodSecurity "{level}:latest"' in message
    assert "hostPath volume" in message or 'uses restricted volume type "hostPath"' in message, (
        message
    )


def test_a_pod_with_a_folder_of_its_host_violates_nothing_else(restricted, example, build):
    template = build(example(model={"uri": "file:///models/target"}))["Deployment"]["spec"][
        "template"
    ]
    message = restricted(template).json()["message"]
    for rule in ("runAsNonRoot", "seccompProfile", "capabilities", "allowPrivilegeEscalation"):
        assert rule not in message
    assert restricted(template, "privileged").status_code == 201


@pytest.mark.parametrize("flags", [(), ("--set", "watchNamespaces={team}")], ids=["all", "some"])
def test_the_operators_pod_is_admitted(flags, restricted, template):
    (deployment,) = (each for each in template(*flags) if each["kind"] == "Deployment")
    answer = restricted(deployment["spec"]["template"])
    assert answer.status_code == 201, answer.text


def test_the_pod_of_helm_test_is_admitted(restricted, template):
    (pod,) = (each for each in template() if each["kind"] == "Pod")
    answer = restricted({"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]})
    assert answer.status_code == 201, answer.text


def test_admission_would_see_a_privileged_container(restricted, example, build):
    template = build(example())["Deployment"]["spec"]["template"]
    template["spec"]["containers"][0]["securityContext"]["privileged"] = True
    template["spec"]["containers"][0]["securityContext"]["allowPrivilegeEscalation"] = True
    answer = restricted(template)
    assert answer.status_code == 403
    assert names.ENGINE_CONTAINER in answer.json()["message"]
