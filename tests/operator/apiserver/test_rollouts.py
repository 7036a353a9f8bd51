"""Rollouts by the real Deployment controller and scheduler; only the kubelet is played.

An observer looks at every pass whether what must always hold does.
"""

import subprocess
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from specdecode_api import names
from specdecode_operator.kinds import CONFIG_MAP, DEPLOYMENT, POD, RESOURCE, ResourceKind

pytestmark = pytest.mark.apiserver

SURGE_TIMEOUT_S = 10

ROOT = Path(__file__).resolve().parents[3]
NODE = ResourceKind("", "v1", "Node", "nodes", ())
AUTOSCALER = ResourceKind(
    "autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", ()
)
CONTROLLERS = (
    "garbage-collector-controller",
    "deployment-controller",
    "replicaset-controller",
    "horizontal-pod-autoscaler-controller",
)
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "1"}
MODELS = {
    "model": {"uri": "file:///models/target"},
    "speculation": {"algorithm": "EAGLE3", "draft": {"uri": "file:///models/eagle3"}},
    "resources": {},
}


@pytest.fixture(scope="module")
def stage(start_plane, open_api, grant_on, make_operator, template, until, tmp_path_factory):
    """An API server with workload controllers, a scheduler, one node, and an operator."""
    log = tmp_path_factory.mktemp("rollouts") / "log"
    with start_plane(*CONTROLLERS) as plane, open_api(plane) as api:
        operator = make_operator(grant_on(plane, api, template()), log)
        plane.plane.start_scheduler()
        api.create(NODE, {"metadata": {"name": "node"}})
        api.merge(NODE, None, "node", {"spec": {"taints": []}})
        set_room(api, {})
        operator.start(until)
        yield SimpleNamespace(plane=plane, api=api, operator=operator)
        assert operator.stop() == 0
    assert "Traceback" not in log.read_text()


@pytest.fixture
def api(stage):
    return stage.api


def set_room(api, more):
    room = {**ROOM, **more}
    conditions = [{"type": "Ready", "status": "True", "reason": "Played"}]
    status = {"capacity": room, "allocatable": room, "conditions": conditions}
    api.merge(NODE, None, "node", {"status": status}, "/status")


class World:
    """One resource, its pods, and a kubelet that takes a pass whenever somebody looks."""

    def __init__(self, api, namespace):
        self.api, self.namespace = api, namespace
        self.may_be_ready = lambda pod: True
        self.most_pods, self.fewest_ready, self.orphans = 0, None, []
        self.strategies = set()

    def pods(self):
        return self.api.items(POD, self.namespace)

    def resource(self):
        return self.api.get(RESOURCE, self.namespace, "chat")

    def ready(self):
        return self._condition("Ready")

    def progressing(self):
        return self._condition("Progressing")

    def _condition(self, kind):
        return next(c for c in self.resource()["status"]["conditions"] if c["type"] == kind)

    def edit(self, spec):
        self.api.merge(RESOURCE, self.namespace, "chat", {"spec": spec})

    def hashes(self):
        return sorted(config_hash(pod) for pod in self.pods())

    def watch_from_now(self):
        self.most_pods, self.fewest_ready, self.orphans = 0, None, []
        self.strategies = set()

    def look(self, condition):
        """Take a pass as the kubelet, note what must hold, and answer whether `condition` does."""
        for pod in self.pods():
            if pod["metadata"].get("deletionTimestamp"):
                path = POD.path(self.namespace, pod["metadata"]["name"])
                self.api.client.request("DELETE", path, json={"gracePeriodSeconds": 0})
            elif pod["spec"].get("nodeName") and not is_ready(pod) and self.may_be_ready(pod):
                self._start(pod)
        self._note()
        return condition()

    def _start(self, pod):
        conditions = [{"type": kind, "status": "True"} for kind in ("Ready", "ContainersReady")]
        answer = self.api.client.patch(
            POD.path(self.namespace, pod["metadata"]["name"]) + "/status",
            json={"status": {"phase": "Running", "conditions": conditions}},
            headers={"Content-Type": "application/strategic-merge-patch+json"},
        )
        assert answer.is_success or answer.status_code == 404, answer.text

    def _note(self):
        # Boot files first: one that goes after its last pod must not look as if it were missing.
        files = {each["metadata"]["name"] for each in self.api.items(CONFIG_MAP, self.namespace)}
        alive = [pod for pod in self.pods() if not pod["metadata"].get("deletionTimestamp")]
        self.orphans += [pod for pod in alive if boot_file(pod) not in files and is_old(pod)]
        ready = sum(map(is_ready, alive))
        self.most_pods = max(self.most_pods, len(alive))
        self.fewest_ready = ready if self.fewest_ready is None else min(self.fewest_ready, ready)
        deployment = self.api.get(DEPLOYMENT, self.namespace, "chat")
        if deployment:
            self.strategies.add(deployment["spec"]["strategy"]["rollingUpdate"]["maxSurge"])


def config_hash(pod):
    return pod["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH]


def boot_file(pod):
    return next(v["configMap"]["name"] for v in pod["spec"]["volumes"] if v["name"] == "boot")


def is_old(pod):
    """Whether a pod was there before the list of boot files could have been made."""
    made = time.strptime(pod["metadata"]["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ")
    return time.mktime(time.gmtime()) - time.mktime(made) > 2


def is_ready(pod):
    conditions = pod["status"].get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


@pytest.fixture
def world(api, namespace, example, until):
    """Create a resource, and wait until all its engines serve."""

    def make(name="specdecode", **spec):
        found = World(api, namespace)
        manifest = example(name)
        manifest["spec"] = {**manifest["spec"], **MODELS, **spec}
        manifest["metadata"] = {"name": "chat", "namespace": namespace}
        api.create(RESOURCE, manifest)
        until(lambda: found.look(lambda: found.ready()["status"] == "True"))
        found.watch_from_now()
        return found

    yield make
    set_room(api, {})
    for resource in api.items(RESOURCE, namespace):
        api.delete(RESOURCE, namespace, resource["metadata"]["name"])
    left = World(api, namespace)
    until(lambda: left.look(lambda: not left.pods()))


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


def test_kubectl_and_an_autoscaler_scale_without_a_restart(stage, world, api, until):
    chat = world()
    uids = {pod["metadata"]["uid"] for pod in chat.pods()}
    kubectl = [stage.plane.programs / "kubectl", "--kubeconfig", stage.plane.kubeconfig]
    scale = [*kubectl, "-n", chat.namespace, "scale", "sdd/chat", "--replicas=3"]
    subprocess.run(scale, check=True, capture_output=True)

    def is_told():  # pods are ready before the Deployment's controller has counted them
        status = chat.resource()["status"]
        counts = ("replicas", "readyReplicas", "updatedReplicas")
        return [status[count] for count in counts] == [3, 3, 3]

    until(lambda: chat.look(is_told))
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
