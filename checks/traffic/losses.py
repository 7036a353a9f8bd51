"""What pods go through: killed, deleted, and driven from their node."""

import itertools
import random
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from checks.traffic.questions import ALL_QUESTIONS
from checks.traffic.routers import increase
from checks.traffic.scene import NAME, SETTLE_S, Scene
from checks.traffic.seen import Seen
from checks.traffic.victims import kill_container
from demo.kubernetes import wait_until
from localnode.node import NODE_NAME
from localnode.progress import report
from specdecode_api import names
from specdecode_operator.objects.kinds import Manifest

KILLS_S = 180.0
BETWEEN_KILLS_S = 20.0
LEAST_KILLS = 6
"""Kills that must meet a request, of nine."""
LEAST_RESUMED = 10
TWO_ENGINES = 2
HELD_S = 3
"""Deadline of requests while no engine runs, far below the start of one."""
HELD_REQUESTS = 4


def engine_kill(scene: Scene) -> None:
    """Kill the process of an engine; without routers, what it was answering is lost."""
    before = scene.now()
    scene.kill_engine(before.ready_pods[0])
    scene.wait("restarted container", lambda seen: _restarts(seen.pods) > _restarts(before.pods))


def engine_kills(scene: Scene) -> None:
    """Kill a random ready engine every 20 s for three minutes, but never the last one.

    Where engines start slowly it takes longer, until enough kills have met a request.
    """
    tally, counts = scene.load.tally, scene.router_counts()
    ends_s = time.monotonic() + KILLS_S
    while (now_s := time.monotonic()) < ends_s or (
        tally.kills_with_streams < LEAST_KILLS and now_s < ends_s + KILLS_S
    ):
        next_s = now_s + BETWEEN_KILLS_S
        seen = scene.wait("second ready engine", lambda seen: len(seen.ready_pods) > 1)
        scene.kill_engine(random.choice(seen.ready_pods))
        time.sleep(max(0.0, next_s - time.monotonic()))
    resumed = increase(counts, scene.router_counts()).resumed
    if tally.kills_with_streams < LEAST_KILLS:
        tally.fail(f"{tally.kills_with_streams} of {tally.kills} kills met a request")
    if resumed < LEAST_RESUMED:
        tally.fail(f"{resumed} answers were resumed, fewer than {LEAST_RESUMED}")


def router_api(scene: Scene) -> None:
    """Kill engines while every API is in use, whole and streamed, over two engines."""
    scene.scale(TWO_ENGINES)
    scene.settle()
    engine_kills(scene)
    answered, wanted = scene.load.tally.forms, {question.form for question in ALL_QUESTIONS}
    missing = [
        f"{form.name}, {'streamed' if is_stream else 'whole'}"
        for form, is_stream in itertools.product(wanted, (True, False))
        if not answered[form.name, is_stream]
    ]
    if missing:
        scene.load.tally.fail(f"no answer of the form {'; '.join(sorted(missing))}")
    scene.scale(scene.replicas)


def router_kill(scene: Scene) -> None:
    """Kill the process of a router: its streams are cut, and their repeats give the same answer."""
    before = scene.now().router_pods
    scene.load.allow_cuts()
    kill_container(before[0])
    scene.wait("restarted router", lambda seen: _restarts(seen.router_pods) > _restarts(before))


def last_engine_kill(scene: Scene) -> None:
    """Kill the only engine: requests wait for it, and get 503 if their deadline comes first."""
    scene.scale(1)
    scene.settle()
    before = scene.now().pods
    scene.witness.findings.may_be_without = True
    scene.kill_engine(before[0])
    with ThreadPoolExecutor(HELD_REQUESTS) as threads:
        held = [threads.submit(_held_request, scene.url) for _ in range(HELD_REQUESTS)]
    for fault in filter(None, (each.result() for each in held)):
        scene.load.tally.fail(fault)
    scene.wait("restarted container", lambda seen: _restarts(seen.pods) > _restarts(before))
    scene.scale(scene.replicas)


def _held_request(url: str) -> str | None:
    """Send a request with a deadline; return what is wrong with its 503."""
    started_s = time.monotonic()
    response = httpx.post(
        f"{url}/completions",
        json={"prompt": "Is anybody there?", "max_tokens": 1},
        headers={names.HEADER_TIMEOUT: str(HELD_S)},
        timeout=60,
        trust_env=False,
    )
    seconds = time.monotonic() - started_s
    if response.status_code != httpx.codes.SERVICE_UNAVAILABLE or seconds < HELD_S:
        return f"status {response.status_code} after {seconds:.1f} s: {response.text[:200]}"
    return None if "retry-after" in response.headers else "a 503 has no Retry-After"


def pod_deletion(scene: Scene) -> None:
    """Delete one pod."""
    victim = scene.now().ready_pods[0]["metadata"]["name"]
    scene.cluster.kubectl("delete", "pod", victim, "--wait=false")


def node_drain(scene: Scene) -> None:
    """Drain the only node: the budget lets one engine go, and no other until that one is back."""
    selector = f"{names.LABEL_DEPLOYMENT}={NAME}"
    seen = scene.now()
    before = {pod["metadata"]["name"] for pod in (*seen.living_pods, *seen.living_routers)}
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
        if (left := len(scene.now().ready_pods)) != scene.replicas - 1:
            scene.load.tally.fail(f"the drain left {left} of {scene.replicas} engines")
    finally:
        scene.cluster.kubectl("uncordon", NODE_NAME)
    output, _ = draining.communicate(timeout=SETTLE_S)
    if draining.returncode or "disruption budget" not in output:
        scene.load.tally.fail(f"kubectl drain ended with {draining.returncode}: {output[-300:]}")
    wait_until(lambda: _remaining(scene.now(), before), report, SETTLE_S)


def _restarts(pods: tuple[Manifest, ...]) -> int:
    statuses = (s for pod in pods for s in pod["status"].get("containerStatuses") or ())
    return sum(status["restartCount"] for status in statuses)


def _waiting(seen: Seen) -> int:
    return sum("nodeName" not in pod["spec"] for pod in seen.living_pods)


def _remaining(seen: Seen, before: set[str]) -> str | None:
    left = before & {pod["metadata"]["name"] for pod in (*seen.pods, *seen.router_pods)}
    return f"{', '.join(sorted(left))} outlast the drain" if left else None
