"""`kubectl specdecode trial`, `rollback` and `adopt` against a real API server."""

import pytest
import yaml

from specdecode_api import names
from specdecode_operator.__main__ import main as operator
from specdecode_operator.objects.kinds import CONTROLLER_REVISION, RESOURCE, TRIAL
from specdecode_operator.objects.resource import parse_stored
from specdecode_operator.plugin.__main__ import main
from specdecode_operator.trial.record.revisions import revision, revision_manifest

pytestmark = pytest.mark.apiserver


@pytest.fixture
def plugin(plane, kubeconfig, namespace, capsys):
    """Run the plugin as an administrator; the CRDs are there once `kubeconfig` is."""

    def run(*words, file=plane.kubeconfig):
        code = main([*map(str, words), "-n", namespace, "--kubeconfig", str(file)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def only_trial(api, namespace):
    def find():
        (found,) = api.items(TRIAL, namespace)
        return found

    return find


def test_a_trial_is_started_with_owner_and_label(chat, plugin, only_trial):
    resource = chat()
    words = ("--strategy", "Canary", "--on-success", "Promote", "--max-duration", "1h", "--exempt")
    code, out, err = plugin("trial", "start", "chat", "-p", "{pageSize: 32}", *words)
    assert (code, err) == (0, "")
    trial = only_trial()
    assert out == f"specdecodetrial.specdecode.io/{trial['metadata']['name']} created\n"
    assert trial["metadata"]["name"].startswith("chat-")
    assert trial["metadata"]["labels"] == {names.LABEL_DEPLOYMENT: "chat"}
    (reference,) = trial["metadata"]["ownerReferences"]
    assert reference["uid"] == resource["metadata"]["uid"]
    assert trial["spec"] == {
        "deployment": "chat",
        "candidate": {"pageSize": 32},
        "strategy": "Canary",
        "onSuccess": "Promote",
        "explorationBudget": "Exempt",
        "origin": "User",
        "state": "Running",
        "promote": False,
        "guard": {"maxDuration": "1h"},
    }


def test_a_candidate_comes_from_a_file(chat, plugin, only_trial, tmp_path):
    chat()
    file = tmp_path / "candidate.yaml"
    file.write_text("engine: {kvCache: {size: null}}\npageSize: 8\n")
    code, _, err = plugin("trial", "start", "chat", "-f", file)
    assert (code, err) == (0, "")
    assert only_trial()["spec"]["candidate"] == {
        "engine": {"kvCache": {"size": None}},
        "pageSize": 8,
    }


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("{pageSize: 3}", "the candidate is invalid: "),
        ("{speculation: {topK: 2}}", 'unknown field "spec.speculation.topK"'),
        ("{replicas: 5}", "a trial can change speculation, pageSize and engine only"),
        ("[1]", "--patch is [1], not a merge patch"),
        ("{a: ", "--patch is neither YAML nor JSON"),
    ],
)
def test_a_bad_candidate_starts_nothing(patch, message, chat, plugin, api, namespace):
    chat()
    code, out, err = plugin("trial", "start", "chat", "-p", patch)
    assert (code, out) == (1, "")
    assert message in err
    assert api.items(TRIAL, namespace) == []


def test_a_file_that_is_not_there_is_an_error(plugin, tmp_path):
    code, _, err = plugin("trial", "start", "chat", "-f", tmp_path / "none")
    assert code == 1
    assert f"cannot read {tmp_path}/none" in err


def test_commands_change_the_trial(chat, plugin, only_trial):
    chat()
    plugin("trial", "start", "chat", "-p", "{pageSize: 32}")
    name = only_trial()["metadata"]["name"]
    for verb, spec in (
        ("pause", {"state": "Paused"}),
        ("resume", {"state": "Running"}),
        ("abort", {"state": "Aborted"}),
    ):
        code, out, err = plugin("trial", verb, name)
        assert (code, err) == (0, "")
        assert out.startswith(f"specdecodetrial.specdecode.io/{name} {verb[:5]}")
        assert only_trial()["spec"].items() >= spec.items()
    code, _, err = plugin("trial", "promote", name)
    assert code == 1
    assert "promote and state: Aborted contradict each other" in err
    code, _, err = plugin("trial", "resume", name)
    assert code == 1
    assert "an aborted trial cannot be resumed" in err


def test_a_deployment_stands_for_its_only_running_trial(chat, plugin, only_trial, api, namespace):
    chat()
    plugin("trial", "start", "chat", "-p", "{pageSize: 32}")
    assert plugin("trial", "pause", "chat")[0] == 0
    assert only_trial()["spec"]["state"] == "Paused"
    plugin("trial", "start", "chat", "-p", "{pageSize: 64}")
    code, _, err = plugin("trial", "pause", "chat")
    assert code == 1
    assert all(each["metadata"]["name"] in err for each in api.items(TRIAL, namespace))


def test_trials_are_listed_with_their_gain(chat, plugin, only_trial, api, namespace):
    chat()
    assert plugin("trial", "list")[1] == f"no SpecDecodeTrial in namespace {namespace}\n"
    plugin("trial", "start", "chat", "-p", "{pageSize: 32}")
    name = only_trial()["metadata"]["name"]
    status = {
        "phase": "Ended",
        "strategy": "Canary",
        "verdict": "Passed",
        "message": "the candidate is faster",
        "interval": {"gain": "0.051", "low": "0.012", "high": "0.09"},
    }
    api.merge(TRIAL, namespace, name, {"status": status}, "/status")
    code, out, _ = plugin("trial", "list", "chat")
    assert code == 0
    row = out.splitlines()[1]
    assert row.split()[:5] == [name, "chat", "Canary", "Ended", "Passed"]
    assert "+5.1% (+1.2% … +9.0%)" in row
    assert row.endswith("the candidate is faster")
    assert "no SpecDecodeTrial of other" in plugin("trial", "list", "other")[1]


@pytest.fixture
def promoted(chat, api, namespace):
    """A deployment with two revisions, of which the newer is in force."""
    stored = chat(pageSize=16)
    owner = parse_stored(stored)
    spec = {name: value for name, value in stored["spec"].items() if name != "rollout"}
    del spec["replicas"]
    old = revision("chat", 1, {**spec, "pageSize": 64}, "v1-a")
    new = revision("chat", 2, {**spec, "pageSize": 32}, "v1-b")
    for each in (old, new):
        api.create(CONTROLLER_REVISION, revision_manifest(each, owner))
    status = {"effective": {"revision": new.name, "configHash": "v1-b", "reason": "Promoted"}}
    api.merge(RESOURCE, namespace, "chat", {"status": status}, "/status")
    return old, new


def test_a_rollback_is_a_promoted_trial_of_the_earlier_revision(promoted, plugin, only_trial):
    old, _ = promoted
    code, out, err = plugin("rollback", "chat")
    assert (code, err) == (0, "")
    assert f"revision 1 ({old.name}) is put in force without a comparison" in out
    spec = only_trial()["spec"]
    assert (spec["candidate"], spec["promote"], spec["origin"]) == ({"pageSize": 64}, True, "User")


def test_a_rollback_to_what_is_in_force_or_unknown_is_refused(promoted, plugin):
    _, new = promoted
    assert "is in force already" in plugin("rollback", "chat", "--to", "2")[2]
    assert f"no revision 5; there are: 2 ({new.name})" in plugin("rollback", "chat", "--to", "5")[2]


def test_adopting_what_was_promoted_ends_the_difference(promoted, plugin, api, namespace, tmp_path):
    code, out, err = plugin("adopt", "chat")
    assert (code, err) == (0, "")
    assert out.startswith(
        f"# kubectl patch sdd chat -n {namespace} --type merge --patch-file FILE\n"
    )
    patch = yaml.safe_load(out)
    assert patch["spec"] == {"pageSize": 32}
    api.merge(RESOURCE, namespace, "chat", patch)
    assert plugin("adopt", "chat")[1].startswith("# the spec of chat is what is in force")


def test_starting_trials_is_a_right_of_its_own(
    chat, api, namespace, plane, plugin, template, only_trial, tmp_path
):
    """An account with the chart's trial editor role starts trials, one with view does not."""
    from localnode.kubeconfig import token_kubeconfig

    chat()
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    files = {}
    for role in ("view", "trial-editor"):
        full = f"specdecode-operator-{role}"
        api.client.post(path, json={"metadata": {"name": role}}).raise_for_status()
        binding = {
            "metadata": {"name": role, "namespace": namespace},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": full,
            },
            "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": namespace}],
        }  # fmt: skip
        api.client.post(
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", json=binding
        ).raise_for_status()
        token = api.client.post(f"{path}/{role}/token", json=request).json()["status"]["token"]
        files[role] = tmp_path / role
        files[role].write_text(
            yaml.safe_dump(token_kubeconfig(plane.url, plane.authority_file, token))
        )
    words = ("trial", "start", "chat", "-p", "{pageSize: 32}")
    code, _, err = plugin(*words, file=files["view"])
    assert code == 1
    assert "controllerrevisions" in err
    code, out, err = plugin(*words, file=files["trial-editor"])
    assert (code, err) == (0, "")
    assert "not checked by a dry run, because" in out
    assert only_trial()["spec"]["candidate"] == {"pageSize": 32}


def test_a_trial_of_the_cluster_is_replayed_or_refused(
    chat, plane, kubeconfig, plugin, only_trial, namespace, capsys
):
    def replay(name):
        words = ("replay", "--trial", name, "-n", namespace, "--kubeconfig", str(plane.kubeconfig))
        code = operator(words)
        return code, capsys.readouterr().err

    chat()
    plugin("trial", "start", "chat", "-p", "{pageSize: 32}")
    name = only_trial()["metadata"]["name"]
    assert replay(name) == (
        2,
        f"specdecode-operator: {name} has no trial with evidence; save one with kubectl get sdt "
        "NAME -o yaml\n",
    )
    code, err = replay("absent")
    assert code == 2
    assert f"no SpecDecodeTrial absent in namespace {namespace}" in err
