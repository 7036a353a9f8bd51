"""A real Deployment controller, scheduler and autoscaler; only the kubelet is played.

An observer looks at every pass whether what must always hold does.
"""

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from specdecode_api import names
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, POD, RESOURCE, ResourceKind

ROOT = Path(__file__).resolve().parents[4]
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
