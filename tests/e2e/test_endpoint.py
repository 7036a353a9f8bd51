"""On the real node: an answer through the Service, drift repaired, children gone with theirs."""

import signal
import subprocess
import sys
import time

import httpx
import pytest

from demo.chat import accept_length, ask_inside
from demo.kubernetes import Cluster, wait_until
from specdecode_api import names

pytestmark = [pytest.mark.node, pytest.mark.timeout(1200)]


def image_of_operator(cluster: Cluster) -> str:
    deployments = cluster.get("deployment", "-n", "specdecode-system")["items"]
    image: str = deployments[0]["spec"]["template"]["spec"]["containers"][0]["image"]
    return image


def test_a_resource_answers_through_its_service_and_speculates(cluster, apply) -> None:
    apply("chat")
    cluster.kubectl("wait", "--for=condition=Ready", "sdd/chat", "--timeout=10s")
    resource = cluster.get("sdd", "chat")
    assert resource["status"]["readyReplicas"] == 1
    answer = ask_inside(cluster, image_of_operator(cluster), print, model="tiny")
    assert answer.tokens > 10
    with cluster.port_forward("deployment/chat", names.MANAGEMENT_PORT) as url:
        metrics = httpx.get(f"{url}/metrics", timeout=10).text
    assert accept_length(metrics) > 1.2


def test_the_plugin_forwards_the_page_and_a_chat(cluster, apply) -> None:
    """By the real kubectl and kubelet, also after the pod has ended."""
    apply("chat", replicas=2)
    command = [sys.executable, "-m", "specdecode_operator.plugin"]
    flags = [] if cluster.context is None else ["--context", cluster.context]
    with subprocess.Popen(
        [*command, "ui", "chat", "--no-browser", *flags],
        env=cluster.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            url, *words = process.stdout.readline().split()
            page = httpx.get(url, timeout=30)
            assert page.status_code == 200
            assert "<title>" in page.text
            assert "default-src 'none'" in page.headers["content-security-policy"]
            pod = words[words.index("pod") + 1].rstrip(";")
            cluster.kubectl("delete", "pod", pod, "--wait")
            wait_until(lambda: unreachable_page(url), print, 120)
        finally:
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, ""), error
    assert f"the connection to pod {pod} has ended; now to pod chat-" in error
    ran = subprocess.run(
        [*command, "chat", "chat", "--max-tokens", "20", *flags],
        env=cluster.environment, input="the quick brown fox\n",
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "tokens/s" in ran.stdout


def unreachable_page(url: str) -> str | None:
    try:
        status = httpx.get(url, timeout=30).status_code
    except httpx.TransportError as error:
        return f"no page: {error!r}"
    return None if status == 200 else f"no page: {status}"


def test_an_engine_of_two_ranks_answers_as_without_a_draft(cluster, apply) -> None:
    apply("ranks", tensor=2)
    body = {"model": "tiny", "prompt": "the quick brown fox", "max_tokens": 60, "temperature": 0}
    with cluster.port_forward("deployment/ranks", names.ENGINE_PORT) as url:
        drafted, plain = (
            httpx.post(f"{url}/v1/completions", json=body | more, timeout=60).json()["choices"]
            for more in ({}, {"speculation": {"max_steps": 0}})
        )
    assert drafted == plain
    with cluster.port_forward("deployment/ranks", names.MANAGEMENT_PORT) as url:
        facts = httpx.get(f"{url}/server_info", timeout=10).json()["facts"]
        metrics = httpx.get(f"{url}/metrics", timeout=10).text
    assert facts["tensor_parallel_size"] == 2
    assert accept_length(metrics) > 1.2
    cluster.kubectl("delete", "sdd", "ranks", "--wait")


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
    apply("gone", algorithm="NGRAM", draft=None)  # whose sources are compiled in the pod
    cluster.kubectl("delete", "sdd", "gone", "--wait")
    wait_until(lambda: leftovers(cluster, "gone"), print, 120)


def leftovers(cluster: Cluster, name: str) -> str | None:
    kinds = "deployments,services,configmaps,serviceaccounts,poddisruptionbudgets"
    label = f"specdecode.io/deployment={name}"
    items = cluster.get(kinds, "-l", label)["items"]
    return f"{len(items)} children are left" if items else None


def test_a_wrong_spec_is_refused_by_the_server_with_the_reason(cluster) -> None:
    text = """
apiVersion: specdecode.io/v1alpha1
kind: SpecDecodeDeployment
metadata: {name: wrong}
spec:
  engine: {device: CPU}
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
