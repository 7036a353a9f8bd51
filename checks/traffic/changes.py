"""What people do: other images, other settings, other numbers of replicas."""

import httpx

from checks.traffic.scene import Scene
from checks.traffic.seen import Seen
from demo.__main__ import ENGINE_IMAGE, OPERATOR_IMAGE, install_chart
from demo.kubernetes import wait_until
from localnode.containerd import ctr
from localnode.paths import Paths
from localnode.progress import report
from specdecode_api import names

SECOND_TAG = "traffic"
RESUME_ID_S = 60.0
HOT_S = 240.0  # the kubelet looks after mounted ConfigMaps about once a minute


def steady(scene: Scene) -> None:
    """Nothing happens."""
    scene.load.wait_answers(30, 60)


def image_change(scene: Scene) -> None:
    """Roll to another name of the engine's image."""
    scene.patch({"engine": {"image": _tag_again(scene, ENGINE_IMAGE)}})


def restart_change(scene: Scene) -> None:
    """Change the draft steps at start: new pods, which could continue the streams of old ones."""
    before = _resume_ids(scene)
    scene.patch({"speculation": {"numSteps": 1}})
    scene.settle()
    if (after := _resume_ids(scene)) != before:
        scene.load.tally.fail(f"other draft steps have another resume_id: {before}, {after}")


def parser_change(scene: Scene) -> None:
    """Read reasoning by another parser, whose text is the same: a stream may not change over."""
    before = _resume_ids(scene)
    scene.patch({"serving": {"reasoningParser": "deepseek_r1"}})
    scene.settle()
    if scene.routers and _resume_ids(scene) & before:
        scene.load.tally.fail("another parser has the same resume_id")


def hot_change(scene: Scene) -> None:
    """Change a threshold of the table: the engines take it up as they run."""
    before = _uids(scene.now())
    table = [{"from": 1, "candidateSteps": [1, 3], "emaAlpha": 0.5}]
    scene.patch({"speculation": {"adaptive": {"batchSizes": table}}})
    wait_until(lambda: _stale_engines(scene.now(), 0.5), report, HOT_S)
    if _uids(scene.now()) != before:
        scene.load.tally.fail("a hot change replaced pods")


def scale_up_and_down(scene: Scene) -> None:
    """Go to one replica, to all, and back to one."""
    for replicas in (1, scene.replicas, 1):
        scene.scale(replicas)
        scene.settle()


def scale_up(scene: Scene) -> None:
    """Have all replicas again."""
    scene.scale(scene.replicas)


def operator_upgrade(scene: Scene) -> None:
    """Upgrade the operator with its chart, to another image name; no engine pod may notice."""
    before = _uids(scene.now())
    _tag_again(scene, OPERATOR_IMAGE)
    with scene.witness.blind():
        more = ("--set", f"image.tag={SECOND_TAG}", "--set", "operator.workers=4")
        install_chart(scene.cluster, *more)
    scene.settle()
    with scene.witness.blind():
        install_chart(scene.cluster)
    scene.settle()
    if _uids(scene.now()) != before:
        scene.load.tally.fail("an upgrade of the operator replaced engine pods")


def forget_second_tags(paths: Paths) -> None:
    """Take the second names away, which would keep former images from being dropped."""
    held = ctr(paths, "images", "list", "--quiet").split()
    second = [name for name in held if name.endswith(f":{SECOND_TAG}")]
    if second:
        ctr(paths, "images", "remove", *second)


def _tag_again(scene: Scene, image: str) -> str:
    name = image.partition(":")[0]
    prefix = "docker.io/library"
    source, target = f"{prefix}/{image}", f"{prefix}/{name}:{SECOND_TAG}"
    ctr(scene.paths, "images", "tag", "--force", source, target)
    return f"{name}:{SECOND_TAG}"


def _uids(seen: Seen) -> set[str]:
    return {pod["metadata"]["uid"] for pod in seen.living_pods}


def _resume_ids(scene: Scene) -> set[str]:
    """Ask each engine for its resume_id, which it computes for routers alone."""
    if not scene.routers:
        return set()
    found: set[str | None] = set()

    def missing() -> str | None:
        found.clear()
        for pod in scene.now().ready_pods:
            host = f"http://{pod['status']['podIP']}:{names.MANAGEMENT_PORT}"
            url = f"{host}{names.PATH_SERVER_INFO}"
            found.add(httpx.get(url, timeout=10, trust_env=False).json()["resume_id"])
        return "an engine has not computed its resume_id" if None in found else None

    wait_until(missing, report, RESUME_ID_S)
    return {each for each in found if each is not None}


def _stale_engines(seen: Seen, alpha: float) -> str | None:
    """Ask each engine for its table."""
    reported = []
    for pod in seen.ready_pods:
        address = f"http://{pod['status']['podIP']}:{names.MANAGEMENT_PORT}{names.PATH_TABLE}"
        entries = httpx.get(address, timeout=10, trust_env=False).json()["entries"]
        if entries["1"]["ema_alpha"] != alpha:
            reported.append(pod["metadata"]["name"])
    return f"{', '.join(reported)} still decide by the former table" if reported else None
