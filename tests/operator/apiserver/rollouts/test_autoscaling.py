"""Autoscalers by the real controller: what they count, also while a trial has pods of its own."""

import subprocess

import pytest
import yaml

from specdecode_api import names
from specdecode_operator.objects.kinds import POD, RESOURCE
from tests.operator.apiserver.rollouts.conftest import AUTOSCALER, ROOT, is_ready
from tests.operator.apiserver.rollouts.custom_metrics import serve_custom_metrics

pytestmark = pytest.mark.apiserver


def test_kubectl_and_an_autoscaler_scale_without_a_restart(stage, world, api, until):
    chat = world()
    uids = {pod["metadata"]["uid"] for pod in chat.pods()}
    kubectl = [stage.plane.programs / "kubectl", "--kubeconfig", stage.plane.kubeconfig]
    scale = [*kubectl, "-n", chat.namespace, "scale", "sdd/chat", "--replicas=3"]
    subprocess.run(scale, check=True, capture_output=True)

    def is_reported():  # pods are ready before the Deployment's controller has counted them
        status = chat.resource()["status"]
        counts = ("replicas", "readyReplicas", "updatedReplicas")
        return [status[count] for count in counts] == [3, 3, 3]

    until(lambda: chat.look(is_reported))
    assert uids < {pod["metadata"]["uid"] for pod in chat.pods()}
    found = api.client.get(RESOURCE.path(chat.namespace, "chat") + "/scale").json()
    assert (found["spec"]["replicas"], found["status"]["replicas"]) == (3, 3)
    selected = api.items(POD, chat.namespace, found["status"]["selector"])
    assert len(selected) == 3

    autoscaler = yaml.safe_load((ROOT / "examples/autoscaling/hpa.yaml").read_text())
    autoscaler["metadata"]["namespace"] = chat.namespace
    api.create(AUTOSCALER, autoscaler)

    def is_able():
        conditions = api.get(AUTOSCALER, chat.namespace, "chat")["status"]["conditions"]
        return {c["type"]: (c["status"], c["reason"]) for c in conditions}["AbleToScale"]

    # not at once: its controller lists the available kinds every 30 s
    until(lambda: is_able() == ("True", "SucceededGetScale"))
    fields = chat.resource()["metadata"]["managedFields"]
    ours = [f for f in fields if f["manager"].startswith(names.FIELD_MANAGER)]
    assert ours
    assert all("f:spec" not in f["fieldsV1"] for f in ours)  # replicas are the autoscaler's
    api.delete(AUTOSCALER, chat.namespace, "chat")


TARGET = 270
"""Of the example's autoscaler, in thousandths of a load per engine."""
GUARDED = {
    "mode": "Manual",
    "editPolicy": "Guarded",
    "strategy": "Canary",
    "guard": {"maxDuration": "1h"},
}


def role(pod):
    return pod["metadata"]["labels"][names.LABEL_ROLE]


@pytest.fixture
def scaled(stage, api, namespace, until):
    """Create the example's autoscaler, and wait for its metric."""
    with serve_custom_metrics(stage.plane.plane, api, until) as metrics:

        def create():
            autoscaler = yaml.safe_load((ROOT / "examples/autoscaling/hpa.yaml").read_text())
            autoscaler["metadata"]["namespace"] = namespace
            autoscaler["spec"]["minReplicas"] = 2
            # The example waits half a minute before it adds engines.
            autoscaler["spec"]["behavior"]["scaleUp"]["stabilizationWindowSeconds"] = 0
            api.create(AUTOSCALER, autoscaler)
            return metrics

        yield create
        api.delete(AUTOSCALER, namespace, "chat")


def test_pods_of_a_canary_do_not_count_for_an_autoscaler(world, api, scaled, until):
    chat = world(replicas=2, rollout=GUARDED)
    metrics = scaled()
    load = 3 * TARGET

    def value_of(pod):  # pods of a trial are busier than any others
        stable = [each for each in chat.pods() if role(each) == names.ROLE_STABLE]
        return load // len(stable) if role(pod) == names.ROLE_STABLE else 8 * TARGET

    metrics.value_of = value_of

    def autoscaler():
        return api.get(AUTOSCALER, chat.namespace, "chat")["status"]

    def serves(count):
        status = autoscaler()
        ready = chat.resource()["status"]["readyReplicas"]
        assert (status["desiredReplicas"], ready) == (count, count), status
        return True

    until(lambda: chat.look(lambda: serves(3)))
    chat.edit({"pageSize": 64})
    trial_roles = {names.ROLE_CANARY, names.ROLE_BASELINE}
    until(lambda: chat.look(lambda: trial_roles <= set(map(role, filter(is_ready, chat.pods())))))
    before = len(metrics.selectors)

    def stays():
        status = autoscaler()
        assert status["desiredReplicas"] == 3, status
        return len(metrics.selectors) >= before + 3

    until(lambda: chat.look(stays))
    (current,) = autoscaler()["currentMetrics"]
    assert current["pods"]["current"]["averageValue"] == f"{TARGET}m"
    assert set(metrics.selectors) == {chat.resource()["status"]["selector"]}

    load = 5 * TARGET  # scales by the stable pods' load while the trial runs
    until(lambda: chat.look(lambda: serves(5)))
    assert trial_roles <= set(map(role, chat.pods()))
    assert chat.resource()["status"]["replicas"] == 5
