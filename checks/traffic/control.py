"""What happens to those in control, in the middle of a roll: the operator and the API server."""

import time
from collections.abc import Callable

from checks.traffic.scene import SETTLE_S, Scene
from checks.traffic.seen import Seen
from checks.traffic.victims import kill_container
from demo.__main__ import NAMESPACE, install_chart
from demo.kubernetes import wait_until
from localnode.progress import report
from localnode.restart import API_SERVER, KUBE_PROXY, kill_part, running_s, start_part
from specdecode_operator.objects import pods as engine_pods
from specdecode_operator.objects.kinds import LEASE, Manifest
from specdecode_operator.settings import LEASE_NAME

OUTAGE_S = 3.0
TAKEOVER_S = 20.0
"""Within which a standby must carry out a change that is made when the leader ends."""
CALM_S = 130.0
"""Least time between two outages. The node's controllers are Kubernetes' own: the pauses of their
watches grow to a minute, also over several outages, until two minutes pass without an error. After
outages in quick succession they take the node for lost and withdraw its endpoints."""


def operator_kill(scene: Scene) -> None:
    """Kill the operator's process in the middle of a roll."""
    _roll(scene, 512)
    with scene.witness.blind():
        before = scene.operator_pod()
        kill_container(before)
        _wait_for_operator(scene, lambda pod: _restarts(pod) > _restarts(before))


def operator_replacement(scene: Scene) -> None:
    """Delete the operator's pod in the middle of a roll."""
    _roll(scene, 256)
    with scene.witness.blind():
        before = scene.operator_pod()["metadata"]
        scene.cluster.kubectl("-n", NAMESPACE, "delete", "pod", before["name"], "--wait=false")
        _wait_for_operator(scene, lambda pod: pod["metadata"]["uid"] != before["uid"])


def leader_kill(scene: Scene) -> None:
    """Kill the leading one of two operators in the middle of a roll, its pod included."""
    with scene.witness.blind():
        install_chart(scene.cluster, "--set", "operator.replicas=2")
    try:
        _roll(scene, 64)
        with scene.witness.blind():
            report(f"  a standby is in control after {_take_leader_away(scene):.1f} s")
        scene.settle()
    finally:
        with scene.witness.blind():
            install_chart(scene.cluster)


def _take_leader_away(scene: Scene) -> float:
    """Seconds from the end of the leader until another one has carried out a new change."""
    before = _leader(scene)
    pods = scene.operator_pods()
    kill_container(next(pod for pod in pods if pod["metadata"]["name"] == before))
    killed_s = time.monotonic()
    # Otherwise the kubelet starts the container again, which is still the holder of the Lease.
    words = ("delete", "pod", before, "--grace-period=0", "--force", "--wait=false")
    scene.cluster.kubectl("-n", NAMESPACE, *words)
    table = [{"from": 1, "candidateSteps": [1, 3], "emaAlpha": 0.4}]
    scene.patch({"speculation": {"adaptive": {"batchSizes": table}}})
    scene.wait("report of a standby", _has_reported, TAKEOVER_S)
    after_s = time.monotonic() - killed_s
    if _leader(scene) == before:
        scene.load.tally.fail("the killed operator still holds the Lease")
    if after_s > TAKEOVER_S:
        scene.load.tally.fail(f"a standby took {after_s:.1f} s, more than {TAKEOVER_S:.0f} s")
    return after_s


def _leader(scene: Scene) -> str:
    """Name of the pod that holds the operators' Lease."""
    lease = scene.reader.get(LEASE.path(NAMESPACE, LEASE_NAME))
    return str(lease["spec"]["holderIdentity"])


def _has_reported(seen: Seen) -> bool:
    status = seen.resource.get("status") or {}
    return bool(status.get("observedGeneration") == seen.resource["metadata"]["generation"])


def api_server_restart(scene: Scene) -> None:
    """Kill the API server in the middle of a roll, and start it again.

    kube-proxy starts again too. Otherwise its pauses after errors, of up to 30 s, may outlast
    `preStop`, and it sends requests to a pod that has ended: the kubelet has learned of it earlier.
    """
    time.sleep(max(0.0, CALM_S - running_s(scene.paths, API_SERVER)))
    _roll(scene, 128)
    with scene.witness.blind():
        words = kill_part(scene.paths, API_SERVER)
        time.sleep(OUTAGE_S)  # the outage itself
        start_part(scene.paths, API_SERVER, words)
        start_part(scene.paths, KUBE_PROXY, kill_part(scene.paths, KUBE_PROXY))
        wait_until(lambda: _operator_state(scene, lambda pod: True), report, SETTLE_S)


def _roll(scene: Scene, chunk_tokens: int) -> None:
    """Begin a roll and wait until its first pod is there."""
    scene.patch({"engine": {"scheduler": {"chunkedPrefillTokens": chunk_tokens + 16}}})
    scene.wait_mid_roll()


def _wait_for_operator(scene: Scene, is_another: Callable[[Manifest], bool]) -> None:
    wait_until(lambda: _operator_state(scene, is_another), report, SETTLE_S)


def _operator_state(scene: Scene, is_another: Callable[[Manifest], bool]) -> str | None:
    try:
        pod = scene.operator_pod()
    except StopIteration:
        return "there is no pod of the operator"
    is_back = is_another(pod) and engine_pods.is_ready(pod)
    return None if is_back else "the operator is not back yet"


def _restarts(pod: Manifest) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses") or ())
