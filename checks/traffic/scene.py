"""The stage: one resource on the local node, with routers or without, its traffic and witness."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from checks.traffic.load import CLIENTS, Client, Load, plain_texts
from checks.traffic.questions import ALL_QUESTIONS, LONG_QUESTIONS, Question
from checks.traffic.reading import Reader, reading
from checks.traffic.routers import RouterCounts, read_counts, requests_on
from checks.traffic.seen import Seen, hash_of
from checks.traffic.victims import kill_container
from checks.traffic.witness import Witness
from demo.__main__ import (
    ENGINE_IMAGE,
    NAMESPACE,
    OPERATOR_IMAGE,
    install_chart,
    resource_state,
)
from demo.checkpoints import load_checkpoints
from demo.console import Console
from demo.kubernetes import Cluster, wait_until
from localnode.paths import Paths
from localnode.progress import report, step
from specdecode_operator.objects.kinds import Manifest

NAME = "traffic"
PLAIN = "traffic-plain"
OPERATOR = "app.kubernetes.io/name=specdecode"
SETTLE_S = 300.0
START_S = 600.0
STREAM_S = 5.0
"""How long the kill of an engine waits for a request there."""

_SPEC: Manifest = {
    "model": {"uri": "pvc://models/target", "servedName": NAME},
    "pageSize": 8,
    "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}},
    "engine": {
        "device": "CPU",
        "threads": 1,
        "kvCache": {"size": "64Mi"},
        "scheduler": {"maxRunningRequests": 16},
    },
    "lifecycle": {"preStop": "4s", "drainTimeout": "40s"},
    "serving": {"reasoningParser": "qwen3"},
}
_SPECULATION: Manifest = {
    "algorithm": "EAGLE3",
    "draft": {"uri": "pvc://models/eagle3"},
    "numSteps": 3,
    "adaptive": {
        "policy": "Ema",
        "batchSizes": [{"from": 1, "candidateSteps": [1, 3], "emaAlpha": 0.2}],
    },
}


@dataclass(frozen=True, slots=True)
class Scene:
    """What events act on and look at."""

    cluster: Cluster
    paths: Paths
    reader: Reader
    load: Load
    witness: Witness
    url: str
    """Of the Service, with `/v1`."""
    replicas: int
    """Engines at the beginning."""
    routers: int

    def patch(self, spec: Manifest) -> None:
        """Change the resource's spec; the API server may be slow to answer after a restart."""
        change = json.dumps({"spec": spec})
        self.cluster.kubectl("patch", "sdd", NAME, "--type=merge", "-p", change)

    def scale(self, replicas: int) -> None:
        """Scale as people and autoscalers do."""
        self.cluster.kubectl("scale", "sdd", NAME, f"--replicas={replicas}")

    def settle(self) -> None:
        """Wait until the resource has come to rest."""
        self.witness.wait_settled(SETTLE_S)

    def wait(self, what: str, is_so: Callable[[Seen], bool], seconds: float = SETTLE_S) -> Seen:
        """Wait for something to be seen."""
        return self.witness.wait(what, is_so, seconds)

    def now(self) -> Seen:
        """Look once."""
        return self.reader.see(NAME)

    def wait_mid_roll(self) -> None:
        """Wait until pods of two configurations live side by side."""
        self.wait(
            "roll that is half done", lambda seen: len({hash_of(p) for p in seen.living_pods}) > 1
        )

    def kill_engine(self, pod: Manifest) -> None:
        """Kill an engine's process, in the middle of a request if one comes soon.

        With routers no request may fail by it.
        """
        name, deadline_s = pod["metadata"]["name"], time.monotonic() + STREAM_S
        if not self.routers:
            self.load.allow_cuts()
        routers = self.now().ready_routers
        while not (requests := requests_on(routers, name)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        kill_container(pod)
        self.load.tally.kills += 1
        self.load.tally.kills_with_streams += bool(requests)

    def router_counts(self) -> dict[str, RouterCounts]:
        """Read what each router has counted."""
        return read_counts(self.now().ready_routers)

    def operator_pods(self) -> list[Manifest]:
        """Pods of the operator that are not ending."""
        pods = self.reader.pods(NAMESPACE, OPERATOR)
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def operator_pod(self) -> Manifest:
        """The operator's pod."""
        return next(iter(self.operator_pods()))


def prepared_cluster() -> Cluster:
    """Bring up the local node with images, chart and checkpoints."""
    cluster = Cluster(None)
    cluster.localnode("up")
    cluster.use_programs()
    cluster.localnode("images")
    with step("chart and checkpoints"):
        install_chart(cluster)
        load_checkpoints(cluster, Console(), OPERATOR_IMAGE)
    return cluster


@contextmanager
def staged(
    cluster: Cluster, clients: Sequence[Client] = CLIENTS, replicas: int = 2, routers: int = 0
) -> Iterator[Scene]:
    """Stage engines under traffic, on a cluster that holds operator and checkpoints."""
    cluster.kubectl("delete", "sdd", NAME, PLAIN, "--ignore-not-found", "--wait")
    with reading() as reader:
        texts = _plain_texts(cluster, reader)
        router: Manifest = {"router": {"replicas": routers}} if routers else {}
        try:
            _apply(cluster, NAME, {"replicas": replicas, "speculation": _SPECULATION, **router})
            url = _service_url(reader, NAME)
            with (
                Witness(NAME, ENGINE_IMAGE) as witness,
                Load(url, NAME, texts, clients) as load,
            ):
                paths = Paths.from_environment()
                scene = Scene(cluster, paths, reader, load, witness, url, replicas, routers)
                scene.settle()
                yield scene
        finally:
            cluster.kubectl("delete", "sdd", NAME, "--ignore-not-found", "--wait=false")


def _plain_texts(cluster: Cluster, reader: Reader) -> dict[Question, str]:
    """What a plain engine of the same image answers."""
    try:
        _apply(cluster, PLAIN, {"replicas": 1, "speculation": {"algorithm": "NONE"}})
        return plain_texts(_service_url(reader, PLAIN), NAME, (*ALL_QUESTIONS, *LONG_QUESTIONS))
    finally:
        cluster.kubectl("delete", "sdd", PLAIN, "--ignore-not-found", "--wait=false")


def _apply(cluster: Cluster, name: str, spec: Manifest) -> None:
    manifest = {
        "apiVersion": "specdecode.io/v1alpha1",
        "kind": "SpecDecodeDeployment",
        "metadata": {"name": name},
        "spec": {**_SPEC, **spec},
    }
    cluster.kubectl("apply", "-f", "-", given=json.dumps(manifest))
    started = time.monotonic()
    wait_until(lambda: resource_state(cluster, name), report, START_S)
    report(f"  {name} is Ready after {time.monotonic() - started:.1f} s")


def _service_url(reader: Reader, name: str) -> str:
    """Reach the Service as programs of the node do, by its address."""
    service = reader.get(f"/api/v1/namespaces/default/services/{name}")
    return f"http://{service['spec']['clusterIP']}/v1"
