"""Rollouts by the real Deployment controller and scheduler; only the kubelet is played."""

import time

import pytest

from specdecode_operator.objects.kinds import CONFIG_MAP, EVENT
from tests.operator.apiserver.rollouts.conftest import config_hash, set_room

pytestmark = pytest.mark.apiserver

SURGE_TIMEOUT_S = 10


def test_a_rollout_surges_where_an_accelerator_is_free(world, api, until):
    set_room(api, {"nvidia.com/gpu": "2"})
    chat = world("gpu", replicas=1)
    (before,) = chat.hashes()
    chat.edit({"pageSize": 64})
    until(
        lambda: chat.look(
            lambda: (
                chat.hashes() not in ([before], [])
                and len(chat.hashes()) == 1
                and chat.ready()["status"] == "True"
            )
        )
    )
    assert chat.fewest_ready == 1
    assert chat.strategies == {1}
    assert chat.orphans == []


def test_a_rollout_goes_on_in_place_where_none_is_free(world, until):
    chat = world("gpu", replicas=1, updateStrategy={"surgeTimeout": f"{SURGE_TIMEOUT_S}s"})
    (before,) = chat.hashes()
    began_s = time.monotonic()
    chat.edit({"pageSize": 64})
    until(lambda: chat.look(lambda: chat.progressing()["reason"] == "InsufficientGPU"))
    assert "Insufficient nvidia.com/gpu" in chat.ready()["message"]
    assert "continues in place" in chat.ready()["message"]
    assert chat.ready()["status"] == "True"
    until(lambda: chat.look(lambda: chat.fewest_ready == 0))
    assert time.monotonic() - began_s >= SURGE_TIMEOUT_S - 2  # it served until the timeout
    until(
        lambda: chat.look(lambda: chat.ready()["status"] == "True" and before not in chat.hashes())
    )
    assert chat.strategies == {0, 1}
    assert chat.orphans == []


def announce(chat, reason, component):
    """Post an event about the pod without a node, as an autoscaler does."""
    pod = next(pod for pod in chat.pods() if not pod["spec"].get("nodeName"))
    about = {key: pod["metadata"][key] for key in ("name", "namespace", "uid")}
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    chat.api.create(
        EVENT,
        {
            "metadata": {
                "generateName": f"{pod['metadata']['name']}.",
                "namespace": chat.namespace,
            },
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", **about},
            "reason": reason,
            "message": f"{reason} by {component}",
            "source": {"component": component},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "type": "Normal",
        },
    )


@pytest.mark.parametrize(
    ("reason", "component"),
    [("TriggeredScaleUp", "cluster-autoscaler"), ("Nominated", "karpenter")],
)
def test_a_rollout_waits_for_a_node_that_an_autoscaler_announced(
    reason, component, world, api, until
):
    timeout_s = 4
    chat = world("gpu", replicas=1, updateStrategy={"surgeTimeout": f"{timeout_s}s"})
    (before,) = chat.hashes()
    began_s = time.monotonic()
    chat.edit({"pageSize": 64})
    until(lambda: chat.look(lambda: chat.progressing()["reason"] == "InsufficientGPU"))
    announce(chat, reason, component)
    # The node comes when the timeout has long passed.
    until(lambda: chat.look(lambda: time.monotonic() - began_s > 3 * timeout_s))
    assert f"an autoscaler announced a node ({reason})" in chat.ready()["message"]
    assert chat.fewest_ready == 1
    set_room(api, {"nvidia.com/gpu": "2"})
    until(
        lambda: chat.look(lambda: chat.ready()["status"] == "True" and before not in chat.hashes())
    )
    assert chat.fewest_ready == 1
    assert chat.strategies == {1}
    assert chat.orphans == []


def test_a_withdrawn_announcement_extends_nothing(world, until):
    chat = world("gpu", replicas=1, updateStrategy={"surgeTimeout": "4s"})
    chat.edit({"pageSize": 64})
    until(lambda: chat.look(lambda: chat.progressing()["reason"] == "InsufficientGPU"))
    announce(chat, "TriggeredScaleUp", "cluster-autoscaler")
    announced_s = time.time()
    until(lambda: chat.look(lambda: time.time() >= announced_s + 1))  # times are whole seconds
    announce(chat, "NotTriggerScaleUp", "cluster-autoscaler")
    until(lambda: chat.look(lambda: 0 in chat.strategies))


def test_the_next_rollout_looks_for_room_again(world, api, until):
    chat = world("gpu", replicas=1, updateStrategy={"type": "InPlace"})
    assert chat.strategies <= {0}
    set_room(api, {"nvidia.com/gpu": "2"})
    chat.edit({"pageSize": 64, "updateStrategy": {"type": "Auto"}})
    chat.watch_from_now()
    until(
        lambda: chat.look(
            lambda: (
                chat.ready()["status"] == "True"
                and chat.resource()["status"]["updatedReplicas"] == 1
                and len(set(chat.hashes())) == 1
                and 1 in chat.strategies
            )
        )
    )
    assert chat.fewest_ready == 1


def test_edits_one_after_the_other_keep_to_the_budget(world, until):
    chat = world(replicas=2)
    before = set(chat.hashes())
    chat.may_be_ready = lambda pod: config_hash(pod) in before
    for page_size in (32, 64, 128):
        chat.edit({"pageSize": page_size})
        generation = chat.resource()["metadata"]["generation"]
        until(
            lambda wanted=generation: chat.look(
                lambda: (
                    chat.resource()["status"]["observedGeneration"] == wanted
                    and chat.resource()["status"]["updatedReplicas"] == 1
                )
            )
        )
    last = chat.resource()["status"]["configHash"]
    chat.may_be_ready = lambda pod: True
    until(
        lambda: chat.look(
            lambda: chat.hashes() == [last, last] and chat.ready()["status"] == "True"
        )
    )
    assert chat.fewest_ready == 2  # old engines serve until new ones do
    assert chat.most_pods <= 3  # two, and the one of the surge
    assert chat.orphans == []
    until(lambda: len(chat.api.items(CONFIG_MAP, chat.namespace)) == 1)


def test_an_edit_taken_back_in_mid_roll_leaves_the_old_engines_alone(world, api, until):
    chat = world(replicas=2)
    (before,) = set(chat.hashes())
    uids = {pod["metadata"]["uid"] for pod in chat.pods()}
    chat.may_be_ready = lambda pod: config_hash(pod) == before
    chat.edit({"pageSize": 64})
    until(lambda: chat.look(lambda: len(chat.hashes()) == 3))
    files = {each["metadata"]["name"] for each in api.items(CONFIG_MAP, chat.namespace)}
    assert f"chat-{before}" in files  # a pod of the old kind that moves still finds its boot file
    assert len(files) == 2
    chat.edit({"pageSize": 16})
    until(
        lambda: chat.look(
            lambda: chat.hashes() == [before, before] and chat.ready()["status"] == "True"
        )
    )
    assert {pod["metadata"]["uid"] for pod in chat.pods()} == uids
    assert chat.fewest_ready == 2
    assert chat.orphans == []
    until(lambda: len(api.items(CONFIG_MAP, chat.namespace)) == 1)
