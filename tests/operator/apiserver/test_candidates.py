"""Candidates of users are validated by the API server, with the policies of the cluster."""

import pytest

from specdecode_api import names
from specdecode_operator.objects.kinds import RESOURCE, TRIAL, ResourceKind

pytestmark = pytest.mark.apiserver

GROUP = "admissionregistration.k8s.io"
POLICY = ResourceKind(GROUP, "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", ())
BINDING = ResourceKind(
    GROUP, "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", ()
)
REASON = "engines come from registry.example alone"


@pytest.fixture(scope="module")
def credentials(kubeconfig, grant, template):
    """A kubeconfig of an account with a Lease of its own; `kubeconfig` has the CRD."""
    flags = "crds.install=false,rbac.aggregate=false,fullnameOverride=candidates"
    return grant(template("--set", flags))


@pytest.fixture
def operator(credentials, make_operator, tmp_path, namespace, until):
    arguments = ("--namespace", namespace)
    operator = make_operator(credentials, tmp_path / "log", arguments, "candidates")
    operator.start(until)
    yield operator
    assert operator.stop() == 0, operator.log.read_text()


@pytest.fixture
def policy(api, namespace, example, until):
    """A policy of the cluster about custom resources of the namespace, once it is in force."""
    name = f"images-{namespace}"
    rule = {
        "apiGroups": [names.GROUP],
        "apiVersions": ["*"],
        "resources": [names.PLURAL],
        "operations": ["CREATE", "UPDATE"],
    }
    image = "object.spec.?engine.?image.orValue('registry.example/x')"
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [
            {"expression": f"{image}.startsWith('registry.example/')", "message": REASON}
        ],
    }
    api.create(
        POLICY,
        {
            "apiVersion": POLICY.api_version,
            "kind": POLICY.kind,
            "metadata": {"name": name},
            "spec": spec,
        },
    )
    selected = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    bound = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selected},
    }
    binding = {
        "apiVersion": BINDING.api_version,
        "kind": BINDING.kind,
        "metadata": {"name": name},
        "spec": bound,
    }
    api.create(BINDING, binding)
    probe = example(engine={"image": "elsewhere.example/probe"})
    probe["metadata"] = {"name": "probe", "namespace": namespace}
    path, query = RESOURCE.path(namespace), {"dryRun": "All"}
    until(lambda: api.client.post(path, params=query, json=probe).is_client_error)
    yield
    api.delete(BINDING, None, name)
    api.delete(POLICY, None, name)


@pytest.fixture
def ended(api, namespace, until):
    """Create a SpecDecodeTrial as `kubectl apply` does; returns its status once it has ended."""

    def create(name, candidate):
        manifest = {
            "apiVersion": TRIAL.api_version,
            "kind": TRIAL.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"deployment": "chat", "candidate": candidate},
        }
        api.create(TRIAL, manifest)

        def status():
            found = api.get(TRIAL, namespace, name).get("status") or {}
            return found if found.get("phase") == "Ended" else None

        return until(status)

    return create


def test_a_candidate_that_a_rule_refuses_is_refused_with_the_words_of_the_server(
    operator, chat, api, namespace, ended
):
    chat(speculation={"algorithm": "NONE"})
    status = ended("too-wide", {"speculation": {"topk": 4}})
    assert (status["verdict"], status["reason"]) == ("Aborted", "InvalidCandidate")
    assert "algorithm NONE does not draft: remove topk" in status["message"]
    assert [each["metadata"]["name"] for each in api.items(RESOURCE, namespace)] == ["chat"]


def test_a_candidate_is_subject_to_the_policies_for_custom_resources(operator, chat, policy, ended):
    chat(engine={"image": "registry.example/engine:1"})
    status = ended("elsewhere", {"engine": {"image": "elsewhere.example/engine:1"}})
    assert (status["verdict"], status["reason"]) == ("Aborted", "InvalidCandidate")
    assert REASON in status["message"]
    assert operator.metric("api_error_total", code="403") == 0
    assert operator.metric("api_error_total", code="422") == 0
