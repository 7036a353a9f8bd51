"""Which engine pod a command connects to, and what it states if there is none."""

import pytest

from specdecode_operator.plugin.engine_pod import choose_engine, page_is_off
from specdecode_operator.plugin.errors import PluginError, forward_error


@pytest.fixture
def resource():
    """A resource whose configuration is v1-new."""

    def make(conditions=(), **spec):
        return {
            "metadata": {"name": "chat", "namespace": "default", "generation": 1},
            "spec": spec,
            "status": {
                "configHash": "v1-new",
                "observedGeneration": 1,
                "conditions": [*conditions],
            },
        }

    return make


def test_a_ready_pod_of_the_current_configuration_is_chosen(resource, pod, states, now):
    found = [
        pod("chat-a", "v1-old", **states["Ready"]),
        pod("chat-b", **states["Starting"]),
        pod("chat-c", **states["Ready"]),
        pod("chat-d", **states["Ready"]),
    ]
    chosen = choose_engine(resource(serving={"page": True}), found, now)
    assert (chosen.name, chosen.port, chosen.wants_page) == ("chat-c", 8000, True)
    assert choose_engine(resource(), found, now, "chat-c").name == "chat-d"
    assert choose_engine(resource(), found[:3], now, "chat-c").name == "chat-a"
    assert choose_engine(resource(), found[2:3], now, "chat-c").name == "chat-c"


def test_a_terminating_pod_is_not_chosen(resource, pod, states, now):
    ending = pod("chat-a", **states["Ready"])
    ending["metadata"]["deletionTimestamp"] = "2026-11-21T11:59:00Z"
    with pytest.raises(PluginError, match="pod chat-a is Terminating"):
        choose_engine(resource(), [ending], now)


def test_the_port_is_that_of_the_container(resource, pod, states, now):
    made = pod("chat-a", **states["Ready"])
    made["spec"]["containers"][0]["ports"].append({"name": "http", "containerPort": 9000})
    assert choose_engine(resource(), [made], now).port == 9000


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("CrashLoopBackOff", "pod chat-a is CrashLoopBackOff: .*no checkpoint in /models/target"),
        ("Unschedulable", "pod chat-a is Unschedulable: .*Insufficient nvidia.com/gpu"),
        ("Starting", "pod chat-a is Starting; kubectl specdecode status chat -n default -w"),
        ("Unknown", "pod chat-a is Unknown"),
    ],
)
def test_without_a_ready_pod_the_reason_is_stated(resource, pod, states, now, state, words):
    with pytest.raises(PluginError, match=words):
        choose_engine(resource(), [pod("chat-a", **states[state])], now)


def test_without_pods_the_condition_or_the_scale_is_stated(resource, now):
    condition = {"type": "Ready", "status": "False", "reason": "OutOfQuota", "message": "no room"}
    with pytest.raises(PluginError, match="Not ready: OutOfQuota; no room; kubectl"):
        choose_engine(resource([condition]), [], now)
    with pytest.raises(PluginError, match="kubectl scale sdd chat -n default --replicas=1"):
        choose_engine(resource(replicas=0), [], now)


def test_a_page_that_is_off_is_named_with_the_command(resource, pod, states, now):
    found = [pod("chat-a", **states["Ready"])]
    error = str(page_is_off(choose_engine(resource(), found, now)))
    assert "serving.page is false" in error
    patch = (
        """kubectl patch sdd chat -n default --type merge -p '{"spec":{"serving":{"page":true}}}'"""
    )
    assert patch in error
    wanted = str(page_is_off(choose_engine(resource(serving={"page": True}), found, now)))
    assert "wait for the rollout: kubectl specdecode status chat -n default -w" in wanted


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (
            ['error: error upgrading connection: pods "chat-a" is forbidden: User "jane" cannot '
             'create resource "pods/portforward" in API group "" in the namespace "default"\n'],
            'User "jane" cannot create .* request the role edit',
        ),
        (
            ["Unable to listen on port 80: ... bind: permission denied]\n", "error: unable\n"],
            "port 80 of 127.0.0.1 may not be used; choose another one with --port",
        ),
        (["error: lost connection to pod\n"], "pod chat-a has ended: error: lost connection"),
        ([], "pod chat-a has ended: it wrote nothing"),
    ],
)  # fmt: skip
def test_why_kubectl_does_not_forward(lines, words):
    with pytest.raises(PluginError, match=words):
        raise forward_error(lines, "chat-a", 80)
