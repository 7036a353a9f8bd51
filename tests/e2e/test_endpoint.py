"""On the real node: an answer through the Service, no request lost on deletion, drift repaired."""

import json
import threading
import time

import httpx
import pytest

from demo.__main__ import resource_state
from demo.chat import accept_length, ask_inside
from demo.kubernetes import Cluster, wait_until

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]

# Runs in a pod of the cluster: asks through the Service, over and over, until told to stop.
LOAD = """
import json, pathlib, sys, threading, urllib.request
url, threads, stop = sys.argv[1], int(sys.argv[2]), pathlib.Path("/tmp/stop")
counts = {"answers": 0, "failures": [], "texts": set()}
lock = threading.Lock()

def ask(number):
    streams = number % 2 == 0
    body = {"model": "tiny", "temperature": 0, "max_tokens": 48, "ignore_eos": True,
            "stream": streams, "prompt": "Count from one to twenty."}
    request = urllib.request.Request(url + "/completions", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        if not streams:
            return json.load(response)["choices"][0]["text"]
        lines = [l[6:] for l in response.read().decode().splitlines() if l.startswith("data: ")]
        if lines[-1] != "[DONE]":
            raise RuntimeError("the stream was cut")
        events = [json.loads(l) for l in lines[:-1]]
        return "".join(c["text"] for e in events for c in e["choices"])

def run(number):
    while not stop.exists():
        try:
            text = ask(number)
            with lock:
                counts["answers"] += 1
                counts["texts"].add(text)
        except Exception as error:
            with lock:
                counts["failures"].append(repr(error))

workers = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
[w.start() for w in workers]
pathlib.Path("/tmp/started").touch()
[w.join() for w in workers]
print(json.dumps({**counts, "texts": len(counts["texts"])}))
"""


def image_of_operator(cluster: Cluster) -> str:
    deployments = cluster.get("deployment", "-n", "specdecode-system")["items"]
    image: str = deployments[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


class Load:
    """Traffic from inside the cluster through a Service, in a pod of its own."""

    def __init__(self, cluster: Cluster, name: str, threads: int = 6) -> None:
        self._cluster = cluster
        self._printed = ""
        cluster.kubectl("delete", "pod", "load", "--ignore-not-found", "--wait")
        url = cluster.get("sdd", name)["status"]["url"]
        self._thread = threading.Thread(
            target=self._run, args=(image_of_operator(cluster), url, threads)
        )
        self._thread.start()
        wait_until(self._not_started, print, 60)

    def _run(self, image: str, url: str, threads: int) -> None:
        self._printed = self._cluster.kubectl(
            "run", "load", f"--image={image}", "--image-pull-policy=IfNotPresent",
            "--restart=Never", "--rm", "-i", "--quiet", "--command", "--",
            "python3", "-c", LOAD, url, str(threads),
        )  # fmt: skip

    def _not_started(self) -> str | None:
        try:
            self._cluster.kubectl("exec", "load", "--", "test", "-e", "/tmp/started")
        except Exception:
            return "the load pod has not started"
        return None

    def stop(self) -> dict[str, object]:
        """End the traffic and return what it counted."""
        self._cluster.kubectl("exec", "load", "--", "touch", "/tmp/stop")
        self._thread.join(timeout=120)
        line = next(line for line in self._printed.splitlines() if line.startswith("{"))
        counts: dict[str, object] = json.loads(line)
        return counts


def test_a_resource_answers_through_its_service_and_speculates(cluster, apply) -> None:
    apply("chat")
    cluster.kubectl("wait", "--for=condition=Ready", "sdd/chat", "--timeout=10s")
    resource = cluster.get("sdd", "chat")
    assert resource["status"]["readyReplicas"] == 1
    answer = ask_inside(cluster, image_of_operator(cluster), model="tiny")
    assert answer.tokens > 10
    with cluster.port_forward("service/chat", 80) as url:
        metrics = httpx.get(f"{url}/metrics", timeout=10).text
    assert accept_length(metrics) > 1.2


def test_no_request_is_lost_when_a_pod_is_deleted_under_load(cluster, apply) -> None:
    """Two replicas, streaming and whole answers; each pod is deleted once while they run."""
    apply("drained", replicas=2)
    load = Load(cluster, "drained")
    selector = cluster.get("sdd", "drained")["status"]["selector"]
    first_pods = cluster.get("pods", "-l", selector)["items"]
    for pod in first_pods:
        cluster.kubectl("delete", "pod", pod["metadata"]["name"], "--wait")
        wait_until(lambda: missing_replicas(cluster, "drained"), print, 300)
    counts = load.stop()
    assert counts["failures"] == []
    assert counts["answers"] > 20
    assert counts["texts"] == 1
    cluster.kubectl("delete", "sdd", "drained", "--wait")


def test_a_hot_change_reaches_the_running_engine_under_load(cluster, apply) -> None:
    """A threshold of the table: through the mounted file, without a new pod or a lost request."""
    apply("chat")
    table = {"1": {"candidateSteps": [1, 3], "emaAlpha": 0.2}}
    patch(cluster, {"policy": "ema", "batchSizes": table})
    wait_until(lambda: resource_state(cluster, "chat"), print, 300)
    before = pod_uids(cluster)
    load = Load(cluster, "chat", threads=3)
    patch(cluster, {"batchSizes": {"1": {"emaAlpha": 0.5}}})
    with cluster.port_forward("service/chat", 80) as url:
        wait_until(lambda: alpha_state(url, 0.5), print, 240)
    counts = load.stop()
    assert counts["failures"] == []
    assert counts["texts"] == 1
    assert pod_uids(cluster) == before
    wait_until(lambda: resource_state(cluster, "chat"), print, 60)


def patch(cluster: Cluster, adaptive: dict[str, object]) -> None:
    change = json.dumps({"spec": {"speculation": {"adaptive": adaptive}}})
    cluster.kubectl("patch", "sdd", "chat", "--type=merge", "-p", change)


def pod_uids(cluster: Cluster) -> set[str]:
    selector = cluster.get("sdd", "chat")["status"]["selector"]
    pods = cluster.get("pods", "-l", selector)["items"]
    alive = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
    return {pod["metadata"]["uid"] for pod in alive}


def alpha_state(url: str, wanted: float) -> str | None:
    entries = httpx.get(f"{url}/speculation/table", timeout=10).json()["entries"]
    alpha = entries["1"]["ema_alpha"]
    return None if alpha == wanted else f"the engine still has ema_alpha {alpha}"


def missing_replicas(cluster: Cluster, name: str) -> str | None:
    status = cluster.get("deployment", name)["status"]
    ready = status.get("readyReplicas", 0)
    return None if ready == 2 else f"{ready} of 2 pods are ready"


def test_a_changed_or_deleted_child_is_put_back(cluster, apply) -> None:
    apply("chat")
    cluster.kubectl("scale", "deployment", "chat", "--replicas=3")
    wait_until(
        lambda: (
            None if cluster.get("deployment", "chat")["spec"]["replicas"] == 1 else "3 replicas"
        ),
        print,
        30,
    )
    before = cluster.get("service", "chat")["metadata"]["uid"]
    cluster.kubectl("delete", "service", "chat")
    wait_until(lambda: same_service(cluster, before), print, 30)


def same_service(cluster: Cluster, before: str) -> str | None:
    names = {
        item["metadata"]["name"]: item["metadata"]["uid"]
        for item in cluster.get("services")["items"]
    }
    return None if names.get("chat") not in (None, before) else "the Service is not back"


def test_children_go_with_their_resource(cluster, apply) -> None:
    apply("gone", algorithm="STANDALONE", draft="draft")
    cluster.kubectl("delete", "sdd", "gone", "--wait")
    wait_until(lambda: leftovers(cluster, "gone"), print, 120)


def leftovers(cluster: Cluster, name: str) -> str | None:
    kinds = "deployments,services,configmaps,serviceaccounts,poddisruptionbudgets"
    label = f"specdecode.io/deployment={name}"
    items = cluster.get(kinds, "-l", label)["items"]
    return f"{len(items)} children are left" if items else None


def test_a_wrong_spec_is_refused_by_the_server_and_told(cluster) -> None:
    text = """
apiVersion: specdecode.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {name: wrong}
spec:
  device: CPU
  model: {uri: "pvc://models/target"}
  speculation: {algorithm: EAGLE3}
"""
    with pytest.raises(Exception, match="draft"):
        cluster.kubectl("apply", "-f", "-", given=text)


def test_the_charts_own_test_passes(cluster) -> None:
    started = time.monotonic()
    printed = cluster.helm("test", "specdecode", "--namespace", "specdecode-system")
    assert "Succeeded" in printed
    assert time.monotonic() - started < 300
