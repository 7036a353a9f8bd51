"""Whether a rollout surges or continues in place."""

import copy
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest

from specdecode_api import names
from specdecode_operator.objects.kinds import child_id
from specdecode_operator.objects.observed import Observed
from specdecode_operator.plan.plan import plan
from specdecode_operator.settings import Settings
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status
from specdecode_operator.updates.update_strategy import overdue_pods

SETTINGS = Settings(engine_image="specdecode-engine:test")
SURGE_TIMEOUT_S = 600
"""Default of updateStrategy.surgeTimeout."""
LONGEST_S = SURGE_TIMEOUT_S + 1800
PROVISION_S = 900
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NO_ROOM = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


def pod(
    name,
    config_hash,
    *,
    waited_s=None,
    message=NO_ROOM,
    role="stable",
    is_ending=False,
    is_evicted=False,
    nominated="",
):
    """A pod that serves, or one without a node since `waited_s`."""
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-of-{name}",
        "annotations": {names.ANNOTATION_CONFIG_HASH: config_hash},
        "labels": {names.LABEL_ROLE: role},
    }
    if is_ending:
        metadata["deletionTimestamp"] = NOW.isoformat()
    if waited_s is None:
        kinds = ("PodScheduled", "Ready")
        conditions = [{"type": kind, "status": "True"} for kind in kinds]
        phase = "Failed" if is_evicted else "Running"
        return {"metadata": metadata, "status": {"phase": phase, "conditions": conditions}}
    since = (NOW - timedelta(seconds=waited_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    scheduled = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
        "lastTransitionTime": since,
    }
    chosen = {"nominatedNodeName": nominated} if nominated else {}
    return {"metadata": metadata, "status": {"conditions": [scheduled], **chosen}}


@pytest.fixture
def decide(example, config_hash, live, build):
    """Decide for a GPU resource whose pods are given; `wanted` stands for its newest hash."""

    def run(pods, strategy="Auto", in_place=None, limits=MappingProxyType({}), events=(), **spec):
        manifest = example("gpu", **spec)
        manifest["spec"]["updateStrategy"] = {"type": strategy, **limits}
        wanted = config_hash(manifest)
        child = live(copy.deepcopy(build(manifest)["Deployment"]))
        child["status"] = {
            "observedGeneration": 1,
            "replicas": 2,
            "updatedReplicas": 1,
            "availableReplicas": 1,
        }
        if in_place is not None:
            mark = wanted if in_place == "wanted" else in_place
            child["metadata"]["annotations"][names.ANNOTATION_IN_PLACE] = mark
        made = []
        for name, which, more in pods:
            made.append(pod(name, wanted if which == "new" else "v1-old", **more))
        observed = Observed(
            manifest, {child_id(child): child}, tuple(made), at=NOW, node_events=tuple(events)
        )
        decided = plan(observed, SETTINGS)
        return decided, status(observed, decided, Outcome(), NOW)

    return run


OLD: tuple[str, str, dict[str, str]] = ("old", "old", {})


def waiting(seconds, **more):
    return ("new", "new", {"waited_s": seconds, **more})


@pytest.mark.parametrize(
    ("pods", "is_in_place", "look_again_s"),
    [
        ([OLD], False, None),
        ([OLD, ("new", "new", {})], False, None),
        ([OLD, waiting(0)], False, SURGE_TIMEOUT_S),
        ([OLD, waiting(SURGE_TIMEOUT_S - 10)], False, 10),
        ([OLD, waiting(SURGE_TIMEOUT_S)], True, None),
        ([OLD, waiting(-5)], False, SURGE_TIMEOUT_S),
        ([OLD, waiting(999, message="0/1 nodes: 1 Insufficient memory.")], True, None),
        ([OLD, waiting(999, nominated="node-2")], False, 60),
        ([OLD, waiting(LONGEST_S - 10, nominated="node-2")], False, 10),
        ([OLD, waiting(LONGEST_S, nominated="node-2")], True, None),
        ([OLD, waiting(999, nominated="node-2"), ("b", "new", {"waited_s": 700})], True, None),
        ([OLD, waiting(180)], False, SURGE_TIMEOUT_S - 180),
        ([OLD, waiting(999, message="0/1 nodes had untolerated taint")], False, None),
        ([waiting(999)], False, None),
        ([("old", "old", {"waited_s": 999}), waiting(999)], False, None),
        ([("old", "old", {"is_ending": True}), waiting(999)], False, None),
        ([("old", "old", {"is_evicted": True}), waiting(999)], False, None),
        ([("canary", "old", {"role": "canary"}), waiting(999)], False, None),
    ],
    ids=[
        "before a rollout",
        "room for both",
        "no room yet",
        "patience",
        "no room",
        "clocks disagree",
        "no memory",
        "a node is nominated",
        "a nominated node is late",
        "a nominated node does not come",
        "a node is nominated for one of two",
        "a node that takes three minutes",
        "not for want of room",
        "nobody gives way",
        "the old one has no room either",
        "the old one is on its way",
        "the old one was evicted",
        "a trial gives no way",
    ],
)
def test_a_rollout_goes_in_place_when_nothing_is_free(pods, is_in_place, look_again_s, decide):
    decided, _ = decide(pods)
    assert decided.strategy.is_in_place is is_in_place
    assert decided.strategy.look_again_s == look_again_s


def event(reason, ago_s, pod="new", **more):
    """An event as an autoscaler posts it about a pod."""
    at = (NOW - timedelta(seconds=ago_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
    about = {"kind": "Pod", "name": pod, "uid": f"uid-of-{pod}"}
    return {"reason": reason, "involvedObject": about, "lastTimestamp": at, **more}


@pytest.mark.parametrize(
    ("waited_s", "events", "is_in_place", "look_again_s"),
    [
        (SURGE_TIMEOUT_S, [event("TriggeredScaleUp", 590)], False, 60),
        (SURGE_TIMEOUT_S, [event("Nominated", 20)], False, 60),
        (SURGE_TIMEOUT_S, [event("TriggeredScaleUp", PROVISION_S - 10)], False, 10),
        (SURGE_TIMEOUT_S, [event("TriggeredScaleUp", PROVISION_S)], True, None),
        (SURGE_TIMEOUT_S, [event("TriggeredScaleUp", 100, pod="other")], True, None),
        (SURGE_TIMEOUT_S, [event("FailedScheduling", 5)], True, None),
        (
            SURGE_TIMEOUT_S,
            [event("TriggeredScaleUp", 500), event("NotTriggerScaleUp", 5)],
            True,
            None,
        ),
        (
            SURGE_TIMEOUT_S,
            [event("NotTriggerScaleUp", 500), event("TriggeredScaleUp", 400)],
            False,
            60,
        ),
        (
            SURGE_TIMEOUT_S + 800,
            [event("Nominated", 1400, series={"lastObservedTime": "2026-11-21T11:59:00.000000Z"})],
            False,
            60,
        ),
        (LONGEST_S, [event("Nominated", 5)], True, None),
        (LONGEST_S - 30, [event("Nominated", 5)], False, 30),
        (SURGE_TIMEOUT_S, [event("Nominated", 0, lastTimestamp="soon")], True, None),
        (180, [event("TriggeredScaleUp", 170)], False, 60),
    ],
    ids=[
        "cluster autoscaler",
        "karpenter",
        "an announcement counts for 15 minutes",
        "an announcement that has expired",
        "for another pod",
        "another reason",
        "withdrawn",
        "announced after all",
        "announced again",
        "announced for ever",
        "the limit",
        "without a valid time",
        "a node that takes three minutes",
    ],
)
def test_the_wait_is_extended_while_a_node_is_coming(
    waited_s, events, is_in_place, look_again_s, decide
):
    decided, reported = decide([OLD, waiting(waited_s)], events=events)
    assert decided.strategy.is_in_place is is_in_place
    assert decided.strategy.look_again_s == look_again_s
    ready = next(each for each in reported["conditions"] if each["type"] == "Ready")
    assert ("waits longer than surgeTimeout" in ready["message"]) is not is_in_place


def mounting(seconds, volume=None):
    """A new pod that was placed and does not have its volumes since."""
    made = pod("new", "v1-new", waited_s=seconds)
    (scheduled,) = made["status"]["conditions"]
    scheduled["status"] = "True"
    del scheduled["message"], scheduled["reason"]
    unready = {"type": "PodReadyToStartContainers", "status": "False"}
    made["status"]["conditions"].append(unready)
    made["spec"] = {"volumes": [volume or {"persistentVolumeClaim": {"claimName": "models"}}]}
    return made


SECRET_MISSING = 'MountVolume.SetUp failed for volume "x" : secret "x" not found'
IN_USE = 'Multi-Attach error for volume "pv" Volume is already used by pod(s) old'
TIMED_OUT = "Unable to attach or mount volumes: unmounted volumes=[models]: timed out"


@pytest.mark.parametrize(
    ("seconds", "volume", "events", "timeout", "is_in_place", "look_again_s"),
    [
        (SURGE_TIMEOUT_S, None, [], "10m", True, None),
        (SURGE_TIMEOUT_S - 9, None, [], "10m", False, 9),
        (30, None, [], "0s", False, 30),
        (60, None, [], "0s", True, None),
        (999, {"secret": {"secretName": "x"}}, [], "10m", False, None),
        (999, None, [("FailedAttachVolume", IN_USE, 5)], "10m", True, None),
        (999, None, [("FailedMount", TIMED_OUT, 5)], "10m", True, None),
        (999, None, [("FailedMount", SECRET_MISSING, 120)], "10m", False, 60),
        (999, None, [("FailedMount", SECRET_MISSING, 301)], "10m", True, None),
    ],
    ids=[
        "surgeTimeout is over",
        "surgeTimeout is not over",
        "a mount may take a minute",
        "a mount takes longer",
        "no PVC",
        "the PVC is attached elsewhere",
        "the kubelet waits for the PVC",
        "a Secret is missing",
        "a Secret was missing",
    ],
)
def test_a_pod_that_waits_for_a_pvc_lacks_capacity(
    seconds, volume, events, timeout, is_in_place, look_again_s, example, config_hash, live, build
):
    manifest = example("gpu", updateStrategy={"surgeTimeout": timeout})
    new = mounting(seconds, volume)
    new["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] = config_hash(manifest)
    child = live(copy.deepcopy(build(manifest)["Deployment"]))
    found = tuple(event(reason, ago_s, message=text) for reason, text, ago_s in events)
    observed = Observed(
        manifest, {child_id(child): child}, (pod("old", "v1-old"), new), at=NOW, node_events=found
    )
    strategy = plan(observed, SETTINGS).strategy
    assert (strategy.is_in_place, strategy.look_again_s) == (is_in_place, look_again_s)
    is_overdue = seconds >= SURGE_TIMEOUT_S or timeout == "0s"
    has_claim = volume is None
    assert overdue_pods(observed) == ((new,) if is_overdue and has_claim else ())


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("Auto", "after updateStrategy.surgeTimeout the rollout continues in place"),
        ("Surge", "set updateStrategy.type to Auto or InPlace, or use a ReadWriteMany PVC"),
    ],
)
def test_conditions_have_the_remedy_of_a_pvc_in_use(kind, part, example, config_hash, live, build):
    manifest = example("gpu", updateStrategy={"type": kind})
    new = mounting(90)
    new["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH] = config_hash(manifest)
    child = live(copy.deepcopy(build(manifest)["Deployment"]))
    counts = {"replicas": 2, "updatedReplicas": 1, "availableReplicas": 1}
    child["status"] = {"observedGeneration": 1, **counts}
    observed = Observed(manifest, {child_id(child): child}, (pod("old", "v1-old"), new), at=NOW)
    reported = status(observed, plan(observed, SETTINGS), Outcome(), NOW)
    found = {each["type"]: each for each in reported["conditions"]}
    for condition in ("Ready", "Degraded", "Stalled"):
        assert found[condition]["reason"] == "VolumesNotMounted"
        assert part in found[condition]["message"]


def test_events_are_read_only_when_a_rollout_is_about_to_continue_in_place(example, config_hash):
    def overdue(*pods, **strategy):
        manifest = example("gpu")
        manifest["spec"]["updateStrategy"] = strategy
        found = overdue_pods(Observed(manifest, {}, pods, at=NOW))
        return [each["metadata"]["name"] for each in found]

    old = pod("old", "v1-old")
    late = pod("late", "v1-new", waited_s=SURGE_TIMEOUT_S)
    assert overdue(old, late) == ["late"]
    assert overdue(old, pod("early", "v1-new", waited_s=SURGE_TIMEOUT_S - 1)) == []
    assert overdue(late) == []
    assert overdue(old, late, type="Surge") == []
    assert overdue(old, late, surgeTimeout="11m") == []


def test_events_about_the_pods_of_a_block_are_read_as_well(example):
    """The blocks of one configuration follow each other, and a trial reads them itself."""

    def of_block(name, stamp, **more):
        found = pod(name, "v1-same", **more)
        found["metadata"]["annotations"][names.ANNOTATION_BLOCK] = stamp
        return found

    manifest = example("gpu")
    manifest["spec"]["updateStrategy"] = {"type": "Surge"}
    late = of_block("late", "trial-2", waited_s=SURGE_TIMEOUT_S)
    before = of_block("before", "trial-1")
    found = overdue_pods(Observed(manifest, {}, (before, late), at=NOW))
    assert [each["metadata"]["name"] for each in found] == ["late"]


def test_what_was_decided_holds_until_the_next_configuration(decide):
    assert decide([OLD, ("new", "new", {})], in_place="wanted")[0].strategy.is_in_place
    assert not decide([OLD, ("new", "new", {})], in_place="v1-other")[0].strategy.is_in_place


@pytest.mark.parametrize(("strategy", "is_in_place"), [("Surge", False), ("InPlace", True)])
def test_the_users_word_counts(strategy, is_in_place, decide):
    for pods in ([OLD], [OLD, waiting(999)]):
        decided, _ = decide(pods, strategy)
        assert decided.strategy.is_in_place is is_in_place
        assert decided.strategy.look_again_s is None


def test_the_switch_is_one_write_of_the_deployment_and_replaces_no_template(decide):
    before, _ = decide([OLD, waiting(0)])
    after, _ = decide([OLD, waiting(SURGE_TIMEOUT_S)])
    assert before.config_hash == after.config_hash
    deployment = next(w.manifest for w in after.writes if w.manifest["kind"] == "Deployment")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert deployment["metadata"]["annotations"][names.ANNOTATION_IN_PLACE] == after.config_hash
    assert (
        names.ANNOTATION_IN_PLACE not in deployment["spec"]["template"]["metadata"]["annotations"]
    )
    assert not any(w.manifest["kind"] == "Deployment" for w in before.writes)


@pytest.mark.parametrize(
    ("seconds", "strategy", "part"),
    [
        (0, "Auto", "unscheduled for updateStrategy.surgeTimeout, the rollout continues in place"),
        (999, "Auto", "engines are replaced in place"),
        (999, "Surge", "updateStrategy.type: Auto would continue in place"),
    ],
)
def test_the_status_names_the_obstacle_and_its_consequence(seconds, strategy, part, decide):
    _, reported = decide([OLD, waiting(seconds)], strategy)
    found = {each["type"]: each for each in reported["conditions"]}
    assert (found["Ready"]["status"], found["Ready"]["reason"]) == ("True", "Updating")
    assert found["Progressing"]["reason"] == "InsufficientGPU"
    for kind in ("Ready", "Progressing"):
        assert "free an nvidia.com/gpu, or add a node" in found[kind]["message"]
        assert part in found[kind]["message"]
    assert reported["readyReplicas"] == 1


@pytest.mark.parametrize(("timeout", "is_in_place"), [("5s", True), ("11s", False)])
def test_the_surge_timeout_of_the_spec_counts(timeout, is_in_place, decide):
    decided, _ = decide([OLD, waiting(10)], limits={"surgeTimeout": timeout})
    assert decided.strategy.is_in_place is is_in_place


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ({}, {"maxSurge": 1, "maxUnavailable": 0}),
        ({"maxSurge": "50%"}, {"maxSurge": "50%", "maxUnavailable": 0}),
        ({"maxSurge": 0, "maxUnavailable": 2}, {"maxSurge": 0, "maxUnavailable": 2}),
        ({"type": "InPlace", "maxUnavailable": "25%"}, {"maxSurge": 0, "maxUnavailable": "25%"}),
    ],
)
def test_the_limits_of_the_spec_reach_the_deployment(strategy, expected, example, build):
    deployment = build(example("gpu", updateStrategy=strategy))["Deployment"]
    assert deployment["spec"]["strategy"]["rollingUpdate"] == expected


def test_a_rollout_that_continues_in_place_stops_as_many_engines_as_the_spec_allows(decide):
    decided, _ = decide([OLD, waiting(999)], limits={"maxSurge": 2, "maxUnavailable": 3})
    (deployment,) = (w.manifest for w in decided.writes if w.manifest["kind"] == "Deployment")
    update = deployment["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": 0, "maxUnavailable": 3}
