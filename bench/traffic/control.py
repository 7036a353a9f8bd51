"""What happens to those in control, in the middle of a roll: the operator and the API server."""

import time
from collections.abc import Callable

from demo.__main__ import NAMESPACE
from demo.kubernetes import wait_until
from localnode.progress import say
from localnode.restart import API_SERVER, kill_part, running_s, start_part
from specdecode_operator import pods as engine_pods
from specdecode_operator.kinds import Manifest
from traffic.scene import SETTLE_S, Scene
from traffic.victims import kill_container

OUTAGE_S = 3.0
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


def api_server_restart(scene: Scene) -> None:
    """Kill the API server in the middle of a roll, and start it again."""
    time.sleep(max(0.0, CALM_S - running_s(scene.paths, API_SERVER)))
    _roll(scene, 128)
    with scene.witness.blind():
        words = kill_part(scene.paths, API_SERVER)
        time.sleep(OUTAGE_S)  # the outage itself
        start_part(scene.paths, API_SERVER, words)
        wait_until(lambda: _operator_state(scene, lambda pod: True), say, SETTLE_S)


def _roll(scene: Scene, chunk_tokens: int) -> None:
    """Begin a roll and wait until its first pod is there."""
    scene.patch({"engine": {"scheduler": {"chunkedPrefillTokens": chunk_tokens + 16}}})
    scene.wait_mid_roll()


def _wait_for_operator(scene: Scene, is_another: Callable[[Manifest], bool]) -> None:
    wait_until(lambda: _operator_state(scene, is_another), say, SETTLE_S)


def _operator_state(scene: Scene, is_another: Callable[[Manifest], bool]) -> str | None:
    try:
        pod = scene.operator_pod()
    except StopIteration:
        return "there is no pod of the operator"
    is_back = is_another(pod) and engine_pods.is_ready(pod)
    return None if is_back else "the operator is not back yet"


def _restarts(pod: Manifest) -> int:
    return sum(status["restartCount"] for status in pod["status"].get("containerStatuses") or ())
