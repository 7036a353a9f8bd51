"""What pods go through: killed, deleted, and driven from their node."""

import subprocess

from demo.kubernetes import wait_until
from localnode.node import NODE_NAME
from localnode.progress import say
from specdecode_api import names
from traffic.scene import NAME, SETTLE_S, Scene
from traffic.seen import Seen
from traffic.victims import kill_container


def engine_kill(scene: Scene) -> None:
    """Kill the process of an engine; what it was answering is lost, and nothing else."""
    before = scene.now()
    scene.load.allow_cuts()
    kill_container(before.ready_pods[0])
    scene.wait("restarted container", lambda seen: _restarts(seen) > _restarts(before))


def pod_deletion(scene: Scene) -> None:
    """Delete one pod."""
    victim = scene.now().ready_pods[0]["metadata"]["name"]
    scene.cluster.kubectl("delete", "pod", victim, "--wait=false")


def node_drain(scene: Scene) -> None:
    """Drain the only node: the budget lets one engine go, and no other until that one is back."""
    selector = f"{names.LABEL_DEPLOYMENT}={NAME}"
    before = {pod["metadata"]["name"] for pod in scene.now().living_pods}
    words = ("kubectl", "drain", NODE_NAME, "--delete-emptydir-data", "--ignore-daemonsets")
    draining = subprocess.Popen(
        [*words, f"--pod-selector={selector}", f"--timeout={SETTLE_S:.0f}s"],
        env=scene.cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        scene.wait("pod without a node", lambda seen: _waiting(seen) == 1)
        scene.load.wait_answers(20, 60)
        if len(scene.now().ready_pods) != 1:
            scene.load.tally.fail("the drain left no engine")
    finally:
        scene.cluster.kubectl("uncordon", NODE_NAME)
    said, _ = draining.communicate(timeout=SETTLE_S)
    if draining.returncode or "disruption budget" not in said:
        scene.load.tally.fail(f"kubectl drain ended with {draining.returncode}: {said[-300:]}")
    wait_until(lambda: _remaining(scene.now(), before), say, SETTLE_S)


def _restarts(seen: Seen) -> int:
    statuses = (s for pod in seen.pods for s in pod["status"].get("containerStatuses") or ())
    return sum(status["restartCount"] for status in statuses)


def _waiting(seen: Seen) -> int:
    return sum("nodeName" not in pod["spec"] for pod in seen.living_pods)


def _remaining(seen: Seen, before: set[str]) -> str | None:
    left = before & {pod["metadata"]["name"] for pod in seen.pods}
    return f"{', '.join(sorted(left))} outlast the drain" if left else None
