"""What the operator answers: conditions, counts and events, from what it sees."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from specdecode_api import names
from specdecode_api.report import Degradation, TerminationMessage, TerminationReason
from specdecode_api.v1alpha1 import Status
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import child_id
from specdecode_operator.objects.observed import Observed
from specdecode_operator.plan.plan import plan
from specdecode_operator.settings import Settings
from specdecode_operator.status import events
from specdecode_operator.status.outcome import Blocked, BlockReason, Outcome
from specdecode_operator.status.status import status

SETTINGS = Settings(engine_image="specdecode-engine:test")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


@pytest.fixture
def world(example, build, live, config_hash):
    """A resource, its Deployment with a given status, and pods with given statuses."""

    def make(*, spec=None, deployment=None, pods=(), previous=None, progress=(), slices=()):
        manifest = example(**(spec or {}))
        if previous is not None:
            manifest["status"] = previous
        children = {}
        if deployment is not None:
            child = live(build(manifest)["Deployment"])
            child["status"] = {"observedGeneration": 1, **deployment}
            children = {child_id(child): child}
        made = (pod(each, config_hash(manifest)) for each in pods)
        return Observed(manifest, children, tuple(made), dict(progress), slices=slices)

    return make


def pod(state, config_hash):
    annotations = {names.ANNOTATION_CONFIG_HASH: config_hash}
    return {"metadata": {"name": "chat-1", "annotations": annotations}, "status": state}


def status_of(observed, outcome=Outcome(), now=NOW):  # noqa: B008
    return status(observed, plan(observed, SETTINGS), outcome, now)


def conditions(shown):
    return {each["type"]: (each["status"], each["reason"]) for each in shown["conditions"]}


def message(shown, kind):
    return next(each["message"] for each in shown["conditions"] if each["type"] == kind)


def replicas(count, **more):
    fields = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    return dict.fromkeys(fields, count) | more


def words(reason, message, models=()):
    return TerminationMessage(reason=reason, message=message, models=models).encode().decode()


MODEL_TROUBLE = {"ModelPVCMissing", "ModelPVCPending", "DraftMismatch", "CheckpointInvalid"}
SERVING = {"conditions": [{"type": "Ready", "status": "True"}]}


def waiting(reason, text=""):
    state = {"waiting": {"reason": reason, "message": text}}
    container = {"name": "engine", "ready": False, "state": state, "image": "engine:1"}
    return {"containerStatuses": [container]}


def crashed(code=1, text="", reason="Error"):
    ended = {"terminated": {"exitCode": code, "message": text, "reason": reason}}
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 5m0s"}}
    container = {"name": "engine", "ready": False, "state": state, "lastState": ended}
    return {"containerStatuses": [container]}


def unscheduled(text):
    return {"conditions": [{"type": "PodScheduled", "status": "False", "message": text}]}


def test_a_serving_resource(world):
    shown = status_of(world(deployment=replicas(1), pods=[SERVING]))
    assert conditions(shown) == {
        "Ready": ("True", "Serving"),
        "Available": ("True", "EnginesServe"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
        "Reconciling": ("False", "AtRest"),
        "Stalled": ("False", "AsExpected"),
        "Degraded": ("False", "AsExpected"),
        "DraftHealthy": ("True", "AsExpected"),
        "ModelReady": ("True", "Loaded"),
        "ConfigResolved": ("True", "Resolved"),
    }
    assert all(each["message"] for each in shown["conditions"])
    assert shown["address"] == {"url": "http://chat.default.svc"}
    assert (shown["replicas"], shown["readyReplicas"], shown["updatedReplicas"]) == (1, 1, 1)
    assert shown["observedGeneration"] == 1
    assert shown["configHash"].startswith("v1-")
    assert "specdecode.io/deployment=chat" in shown["selector"]
    assert "specdecode.io/role=stable" in shown["selector"], (
        "an autoscaler counts no pod of a trial"
    )


def test_ready_pods_are_counted_before_the_deployments_controller_counts_them(world):
    shown = status_of(world(deployment=replicas(2, readyReplicas=1), pods=[SERVING, SERVING]))
    assert shown["readyReplicas"] == 2


def test_reconciling_follows_the_pods_and_not_the_late_counts_of_the_deployment(world):
    killed = world(spec={"replicas": 2}, deployment=replicas(2), pods=[SERVING, {"conditions": []}])
    assert conditions(status_of(killed))["Reconciling"] == ("True", "PodsNotReady")
    back = world(
        spec={"replicas": 2}, deployment=replicas(2, readyReplicas=1), pods=[SERVING, SERVING]
    )
    assert conditions(status_of(back))["Reconciling"] == ("False", "AtRest")


def test_an_engine_that_crashed_once_and_runs_again_is_not_stalled(world):
    container = crashed()["containerStatuses"][0] | {"state": {"running": {}}, "restartCount": 1}
    deployment = replicas(0, replicas=1, updatedReplicas=1)
    again = {"containerStatuses": [container]}
    found = conditions(status_of(world(deployment=deployment, pods=[again])))
    assert found["Degraded"] == ("True", "EngineCrashing")
    assert found["Reconciling"][0] == "True"
    assert found["Stalled"] == ("False", "AsExpected")
    container["restartCount"] = 2
    found = conditions(status_of(world(deployment=deployment, pods=[again])))
    assert found["Reconciling"] == ("False", "AtRest")
    assert found["Stalled"] == ("True", "EngineCrashing")


def endpoint(uid, **conditions):
    return {"targetRef": {"kind": "Pod", "uid": uid}, "conditions": conditions}


def slice_of(service, *endpoints):
    labels = {"kubernetes.io/service-name": service}
    return {"metadata": {"labels": labels}, "endpoints": [*endpoints] or None}


def test_a_pod_of_several_ranks_needs_its_gpus_on_one_node(world):
    lacking = unscheduled("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")
    observed = world(deployment=replicas(0), pods=[lacking])
    limits = {"limits": {"nvidia.com/gpu": "4"}}
    observed.pods[0]["spec"] = {"containers": [{"name": "engine", "resources": limits}]}
    assert conditions(status_of(observed))["Ready"] == ("False", "InsufficientGPU")
    assert message(status_of(observed), "Ready").startswith(
        "0/2 nodes are available: 2 Insufficient nvidia.com/gpu; free 4 nvidia.com/gpu on one "
        "node, or add a node that has as many"
    )


def test_routable_are_pods_with_a_ready_endpoint_and_each_counts_once(world):
    name = world().resource["metadata"]["name"]
    slices = (
        slice_of(name, endpoint("a", ready=True), endpoint("b", ready=False, serving=True)),
        slice_of(name, endpoint("a", ready=True), endpoint("c", ready=True)),
        slice_of(name),
        slice_of(f"{name}-engines", *(endpoint(uid, ready=True) for uid in "def")),
    )
    assert status_of(world(pods=[SERVING], slices=slices))["routableReplicas"] == 2


@pytest.mark.parametrize(
    ("state", "ready", "is_degraded", "text"),
    [
        (waiting("ContainerCreating"), "Starting", False, "0 of 1"),
        (waiting("ImagePullBackOff", "no such tag"), "ImagePullFailed", True, "engine:1: no such"),
        (waiting("ErrImageNeverPull"), "ImagePullFailed", True, "ErrImageNeverPull"),
        (waiting("CreateContainerConfigError", "x"), "ContainerCannotStart", True, "x"),
        (crashed(2, "no checkpoint in /models/target"), "EngineCrashing", True, "code 2: no check"),
        (crashed(137, "", "OOMKilled"), "EngineCrashing", True, "raise resources.limits.memory"),
        (
            crashed(1, words(TerminationReason.DRAFT_MISMATCH, "50 tokens, the target of 97")),
            "DraftMismatch",
            True,
            "50 tokens, the target of 97",
        ),
        (
            crashed(1, words(TerminationReason.CHECKPOINT_INVALID, "config.json: no such file")),
            "CheckpointInvalid",
            True,
            "no such file",
        ),
        (
            crashed(1, words(TerminationReason.NOT_ENOUGH_MEMORY, "needs 9 pages")),
            "NotEnoughMemory",
            True,
            "needs 9 pages",
        ),
        (crashed(1, words("SolarFlare", "of a later release")), "SolarFlare", True, "of a later"),
        (
            crashed(137, words(TerminationReason.ENGINE_FAILED, "x"), "OOMKilled"),
            "EngineCrashing",
            True,
            "raise resources.limits.memory",
        ),
        (
            unscheduled("0/1 nodes are available: 1 Insufficient nvidia.com/gpu."),
            "InsufficientGPU",
            False,
            "Insufficient nvidia.com/gpu",
        ),
        (unscheduled("0/1 nodes: 1 Insufficient memory."), "Unschedulable", False, "memory"),
        (
            unscheduled('0/1 nodes are available: persistentvolumeclaim "models" not found.'),
            "ModelPVCMissing",
            True,
            "create the PVC",
        ),
        (
            unscheduled("pod has unbound immediate PersistentVolumeClaims"),
            "ModelPVCPending",
            False,
            "unbound",
        ),
    ],
)
def test_ready_reports_why_the_pods_do_not_serve(state, ready, is_degraded, text, world):
    deployment = {"replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1}
    shown = status_of(world(deployment=deployment, pods=[state]))
    found = conditions(shown)
    assert found["Ready"] == ("False", ready)
    assert text in message(shown, "Ready")
    assert found["Available"] == ("False", "NoRoutableEndpoints")
    assert found["Degraded"] == (("True", ready) if is_degraded else ("False", "AsExpected"))
    is_about_data = ready in MODEL_TROUBLE
    assert found.get("ModelReady") == (("False", ready) if is_about_data else None)


def test_an_update_that_fails_is_reported_while_the_old_pods_serve(world):
    deployment = replicas(1, replicas=2, updatedReplicas=1)
    observed = world(deployment=deployment, pods=[crashed(1, "out of memory at capture")])
    found = conditions(status_of(observed))
    assert found["Ready"] == ("False", "EngineCrashing")
    assert found["Available"] == ("True", "EnginesServe")
    assert found["Degraded"] == found["Stalled"] == ("True", "EngineCrashing")
    assert found["Reconciling"] == ("False", "AtRest")


def test_old_status_of_a_deployment_is_not_taken_for_the_new(world):
    deployment = replicas(1, observedGeneration=0)
    found = conditions(status_of(world(deployment=deployment, pods=[])))
    assert found["Ready"] == ("True", "Updating")
    assert found["Progressing"][0] == found["Reconciling"][0] == "True"


def test_an_update_reports_how_far_it_has_come(world):
    deployment = replicas(3, replicas=4, updatedReplicas=1)
    shown = status_of(world(spec={"replicas": 3}, deployment=deployment))
    assert conditions(shown)["Ready"] == ("True", "Updating")
    assert message(shown, "Ready") == "1 of 3 engines are up to date; 3 of 3 engines serve"


NO_ROOM = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."


@pytest.mark.parametrize(
    ("strategy", "available", "ready"),
    [
        ({}, 4, ("True", "Updating")),
        ({}, 3, ("False", "InsufficientGPU")),
        ({"maxUnavailable": 1}, 3, ("True", "Updating")),
        ({"maxUnavailable": "25%"}, 3, ("True", "Updating")),
        ({"maxUnavailable": "24%"}, 3, ("False", "InsufficientGPU")),
        ({"type": "InPlace"}, 3, ("True", "Updating")),
        ({"type": "InPlace", "maxUnavailable": "100%"}, 0, ("False", "InsufficientGPU")),
    ],
)
def test_a_healthy_rollout_is_ready_while_enough_engines_serve(strategy, available, ready, world):
    deployment = replicas(available, replicas=4, updatedReplicas=1)
    spec = {"replicas": 4, "updateStrategy": strategy}
    shown = status_of(world(spec=spec, deployment=deployment, pods=[unscheduled(NO_ROOM)]))
    found = conditions(shown)
    assert found["Ready"] == ready
    assert found["Progressing"] == ("True", "InsufficientGPU")
    assert found["Reconciling"] == ("True", "InsufficientGPU")
    assert found["Stalled"] == ("False", "AsExpected")
    assert "Insufficient nvidia.com/gpu" in message(shown, "Ready")


@pytest.mark.parametrize(
    ("text", "reason", "remedy"),
    [
        (
            'pods "chat-5f-x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=1, '
            "limited: pods=1",
            "QuotaExceeded",
            "raise ResourceQuota team, lower resources",
        ),
        (
            'pods "chat-5f-x" is forbidden: violates PodSecurity "restricted:latest": host',
            "PodSecurityRefused",
            "remove the changes of template.spec",
        ),
        (
            'pods "chat-5f-x" is forbidden: no PriorityClass with name high was found',
            "PriorityClassMissing",
            "create PriorityClass high, or change template.spec.priorityClassName",
        ),
        (
            'pods "chat-5f-x" is forbidden: pod rejected: RuntimeClass "nvidia" not found',
            "RuntimeClassMissing",
            "create RuntimeClass nvidia, or change template.spec.runtimeClassName",
        ),
        (
            'pods "chat-5f-x" is forbidden: maximum memory usage per Container is 1Gi',
            "LimitRangeRefused",
            "or the namespace's LimitRange",
        ),
        (
            'admission webhook "a.b" denied the request: no',
            "WebhookRefused",
            "comply with webhook a.b",
        ),
        ("something new", "PodsNotCreated", "something new"),
    ],
)
def test_why_no_pod_can_be_made_reaches_the_user_with_the_remedy(text, reason, remedy, world):
    failure = {"type": "ReplicaFailure", "status": "True", "message": text}
    shown = status_of(world(deployment={"conditions": [failure]}))
    assert conditions(shown)["Ready"] == ("False", reason)
    assert conditions(shown)["Degraded"] == ("True", reason)
    assert message(shown, "Ready").startswith(text)
    assert remedy in message(shown, "Ready")
    assert conditions(shown)["Stalled"] == ("True", reason)


def mounting(seconds, volumes=(), **more):
    since = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    kinds = {"PodScheduled": "True", "PodReadyToStartContainers": "False"} | more
    listed = [{"type": k, "status": v, "lastTransitionTime": since} for k, v in kinds.items()]
    return {"conditions": listed, **waiting("ContainerCreating")}, {"volumes": list(volumes)}


VOLUMES = (
    {"name": "a", "secret": {"secretName": "certificates"}},
    {"name": "b", "secret": {"secretName": "keys", "optional": True}},
    {"name": "c", "configMap": {"name": "settings"}},
    {"name": "d", "persistentVolumeClaim": {"claimName": "models"}},
    {"name": "e", "emptyDir": {}},
)


@pytest.mark.parametrize(
    ("seconds", "more", "reason"),
    [
        (59, {}, "Starting"),
        (61, {}, "VolumesNotMounted"),
        (61, {"PodReadyToStartContainers": "True"}, "Starting"),  # an image is pulled
    ],
)
def test_a_pod_that_cannot_mount_is_reported_after_a_minute(seconds, more, reason, world):
    state, spec = mounting(seconds, VOLUMES, **more)
    seen = replace(world(deployment=replicas(0), pods=[state]), at=NOW)
    seen = replace(seen, pods=tuple({**each, "spec": spec} for each in seen.pods))
    shown = status_of(seen)
    assert conditions(shown)["Ready"] == ("False", reason)
    left_s = pods.patience_left_s(seen.pods, NOW)
    assert left_s == (1 if seconds == 59 else None)
    if reason == "VolumesNotMounted":
        text = message(shown, "Ready")
        assert "Secret certificates, ConfigMap settings, PVC models exist" in text
        assert "keys" not in text
        assert "kubectl describe pod" in text


@pytest.mark.parametrize(
    ("text", "reason", "expected"),
    [
        ('secret "proxy" not found', "SecretMissing", "Secret proxy does not exist: create it"),
        ('configmap "proxy" not found', "ConfigMapMissing", "ConfigMap proxy does not exist"),
        (
            "couldn't find key url in Secret default/proxy",
            "SecretKeyMissing",
            "Secret proxy has no key url: add it",
        ),
        (
            "couldn't find key url in ConfigMap default/proxy",
            "ConfigMapKeyMissing",
            "ConfigMap proxy has no key url: add it",
        ),
    ],
)
def test_what_a_variable_names_and_nobody_made_is_named(text, reason, expected, world):
    state = waiting("CreateContainerConfigError", text)
    shown = status_of(world(deployment=replicas(0), pods=[state]))
    assert conditions(shown)["Ready"] == ("False", reason)
    assert expected in message(shown, "Ready")
    assert "template.spec" in message(shown, "Ready")


def test_missing_api_keys_are_named_with_the_remedy(world):
    text = "no API key in /etc/specdecode-keys; kubectl create secret generic NAME"
    state = crashed(1, words(TerminationReason.API_KEYS_MISSING, text))
    shown = status_of(world(deployment=replicas(0), pods=[state]))
    assert conditions(shown)["Ready"] == ("False", "ApiKeysMissing")
    assert "kubectl create secret generic" in message(shown, "Ready")


def test_a_missed_deadline_is_a_fault(world):
    late = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    shown = status_of(world(deployment={"replicas": 1, "conditions": [late]}))
    assert conditions(shown)["Progressing"] == ("False", "ProgressDeadlineExceeded")
    assert conditions(shown)["Degraded"] == ("True", "ProgressDeadlineExceeded")


def test_no_replicas_is_a_wish_and_not_a_fault(world):
    found = conditions(status_of(world(spec={"replicas": 0}, deployment=replicas(0))))
    assert found["Ready"] == ("True", "ScaledToZero")
    assert found["Available"] == ("True", "ScaledToZero")


def test_a_spec_that_cannot_be_carried_out(world):
    previous = {"configHash": "v1-last", "observedGeneration": 0}
    observed = world(deployment=replicas(1), pods=[], previous=previous)
    observed.resource["spec"]["template"] = {"spec": {"restartPolicy": "Never"}}
    shown = status_of(observed)
    found = conditions(shown)
    assert found["ConfigResolved"] == found["Ready"] == ("False", "Invalid")
    assert found["Available"] == ("True", "EnginesServe")
    assert "cannot be patched; it is Always" in message(shown, "ConfigResolved")
    assert shown["configHash"] == "v1-last"


@pytest.mark.parametrize("reason", list(BlockReason))
def test_an_obstacle_is_reported(reason, world):
    outcome = Outcome(blocked=Blocked(reason, "Service chat exists"))
    shown = status_of(world(deployment=replicas(1), pods=[SERVING]), outcome)
    assert conditions(shown)["Ready"] == ("False", reason)
    assert message(shown, "Ready") == "Service chat exists"
    is_fault = reason is not BlockReason.WAITING_FOR_GARBAGE_COLLECTION
    assert (conditions(shown)["Degraded"][0] == "True") == is_fault


def test_transition_times_move_with_the_status_only(world):
    first = status_of(world(deployment={"replicas": 1}, pods=[waiting("ContainerCreating")]))
    second = status_of(
        world(deployment={"replicas": 1}, pods=[crashed()], previous=first), now=LATER
    )
    third = status_of(world(deployment=replicas(1), pods=[SERVING], previous=second), now=LATER)
    times = [
        {each["type"]: each["lastTransitionTime"] for each in shown["conditions"]}
        for shown in (first, second, third)
    ]
    assert times[0]["Ready"] == times[1]["Ready"] == "2026-11-21T12:00:00Z"
    assert times[1]["Degraded"] == times[2]["Ready"] == "2026-11-21T12:05:00Z"


def test_the_status_of_the_same_state_is_the_same(world):
    first = status_of(world(deployment=replicas(1), pods=[SERVING]))
    again = status_of(world(deployment=replicas(1), pods=[SERVING], previous=first), now=LATER)
    assert again == first


def test_a_status_fits_the_contract(world):
    shown = status_of(world(deployment={"replicas": 1}, pods=[crashed(1, "x" * 5000)]))
    Status.from_resource(shown)
    assert len(message(shown, "Ready")) <= 1000


def test_one_event_per_transition_of_ready(world):
    observed = world(deployment={"replicas": 1}, pods=[waiting("ContainerCreating")])
    first = status_of(observed)
    (event,) = events.transitions(observed.resource, first, NOW)
    assert (event["reason"], event["type"]) == ("Starting", "Normal")
    assert event["involvedObject"]["uid"] == "uid-1"

    observed = world(deployment={"replicas": 1}, pods=[crashed(3, "gone")], previous=first)
    second = status_of(observed, now=LATER)
    (event,) = events.transitions(observed.resource, second, LATER)
    assert (event["reason"], event["type"]) == ("EngineCrashing", "Warning")
    assert "gone" in event["message"]

    observed = world(deployment={"replicas": 1}, pods=[crashed(3, "gone")], previous=second)
    assert events.transitions(observed.resource, status_of(observed), LATER) == ()


def test_a_refused_spec_is_reported_once_and_its_repair_too(world):
    observed = world(deployment=replicas(1), pods=[SERVING])
    observed.resource["spec"]["template"] = {"spec": {"restartPolicy": "Never"}}
    refused = status_of(observed)
    reasons = [each["reason"] for each in events.transitions(observed.resource, refused, NOW)]
    assert reasons == ["Invalid"]
    repaired = world(deployment=replicas(1), pods=[SERVING], previous=refused)
    reasons = [
        each["reason"] for each in events.transitions(repaired.resource, status_of(repaired), NOW)
    ]
    assert reasons == ["Resolved", "Serving"]


def test_the_same_news_has_the_same_name(world):
    observed = world(deployment={"replicas": 1})
    shown = status_of(observed)
    posted = [events.transitions(observed.resource, shown, when) for when in (NOW, LATER)]
    assert posted[0][0]["metadata"]["name"] == posted[1][0]["metadata"]["name"]


def test_a_draft_that_does_not_fit_is_not_described_as_a_crash(world):
    text = words(
        TerminationReason.DRAFT_MISMATCH, "vocabulary of 50 tokens, the target of 97; use another"
    )
    shown = status_of(world(deployment={"replicas": 1}, pods=[crashed(1, text)]))
    assert conditions(shown)["ModelReady"] == ("False", "DraftMismatch")
    for kind in ("Ready", "ModelReady", "Degraded"):
        assert message(shown, kind) == "vocabulary of 50 tokens, the target of 97; use another"


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            TerminationReason.DRIVER_TOO_OLD,
            "the NVIDIA driver supports CUDA 12.4, and torch is built for CUDA 13.0; install 580",
        ),
        (TerminationReason.DEVICE_FAILED, "CUDA error: x; num_steps 3, batch size 8"),
        (TerminationReason.STEP_TIMED_OUT, "a step has been running for 301 s"),
    ],
)
def test_a_failure_of_the_gpu_is_the_reason_of_ready_and_degraded(world, reason, text):
    status = status_of(world(deployment={"replicas": 1}, pods=[crashed(1, words(reason, text))]))
    for kind in ("Ready", "Degraded"):
        assert conditions(status)[kind][1] == reason
        assert message(status, kind) == text


def test_a_model_that_is_loaded_outlives_the_report_of_a_lost_pod(world):
    lost = {"phase": "Failed", "reason": "Evicted", "message": 'volume "model-cache" is too large'}
    pods = [SERVING, lost]
    assert (
        conditions(status_of(world(deployment=replicas(1), pods=pods)))["ModelReady"][0] == "True"
    )
    found = conditions(status_of(world(deployment={"replicas": 1}, pods=[lost])))
    assert found["ModelReady"] == found["Ready"] == ("False", "OutOfSpace")


def test_an_evicted_pod_counts_until_a_younger_one_is_ready(world):
    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}
    seen = world(deployment=replicas(0, replicas=1), pods=[evicted, {"conditions": []}])
    assert conditions(status_of(aged(seen)))["Degraded"] == ("True", "Evicted")
    seen = aged(world(deployment=replicas(1), pods=[evicted, SERVING]))
    found = conditions(status_of(seen))
    assert (found["Ready"], found["Degraded"][0]) == (("True", "Serving"), "False")
    assert found["Reconciling"] == ("False", "AtRest")
    moving = world(deployment=replicas(1, updatedReplicas=0), pods=[evicted, SERVING])
    found = conditions(status_of(aged(moving)))
    assert found["Ready"] == ("True", "Updating")
    assert found["Stalled"][0] == "False"


def aged(observed):
    """The pods of a world, each created a minute after the one before."""
    pods = [
        {**each, "metadata": {**each["metadata"], "creationTimestamp": f"2026-11-21T11:0{at}:00Z"}}
        for at, each in enumerate(observed.pods)
    ]
    return replace(observed, pods=tuple(pods))


def test_a_definition_that_is_outdated_is_reported_and_a_current_one_is_not(world):
    observed = world()
    decided = plan(observed, SETTINGS)
    reported = status(observed, decided, Outcome(), NOW, ("spec.download",))
    assert conditions(reported)["DefinitionCurrent"] == ("False", "DefinitionOutdated")
    assert "drops or rejects spec.download; upgrade it" in message(reported, "DefinitionCurrent")
    assert "DefinitionCurrent" not in conditions(status_of(observed))


def test_an_engine_that_does_worse_than_configured_is_degraded_and_ready(world):
    worse = Degradation(reason="CudaGraphsMissed", message="over budget")
    seen = world(deployment=replicas(1), pods=[SERVING])
    status = status_of(replace(seen, degraded=(("chat-1", worse), ("chat-2", worse))))
    assert conditions(status)["Ready"] == ("True", "Serving")
    assert conditions(status)["Degraded"] == ("True", "CudaGraphsMissed")
    assert message(status, "Degraded") == "chat-1 (and 1 more): over budget"
    assert conditions(status)["Stalled"][0] == "False"


def test_an_unfit_draft_is_a_condition_of_its_own(world):
    serving = world(deployment=replicas(1), pods=[SERVING])
    speculation = serving.resource["spec"]["speculation"]
    assert speculation["algorithm"] == "EAGLE3"
    assert conditions(status_of(serving))["DraftHealthy"] == ("True", "AsExpected")
    unfit = Degradation(reason="DraftUnfit", message="the draft does not fit the target: 1 of 200")
    status = status_of(replace(serving, degraded=(("chat-1", unfit),)))
    assert conditions(status)["DraftHealthy"] == ("False", "DraftUnfit")
    assert conditions(status)["Degraded"] == ("True", "DraftUnfit")
    assert message(status, "DraftHealthy") == f"chat-1: {unfit.message}"
    assert conditions(status)["Ready"] == ("True", "Serving")


@pytest.mark.parametrize("algorithm", ["NONE", "NGRAM"])
def test_without_a_draft_model_there_is_no_condition_for_it(world, algorithm):
    serving = world(deployment=replicas(1), pods=[SERVING])
    serving.resource["spec"]["speculation"] = {"algorithm": algorithm}
    assert "DraftHealthy" not in conditions(status_of(serving))


def test_a_capture_that_failed_is_a_condition_and_one_event(world):
    serving = world(deployment=replicas(1), pods=[SERVING])
    calm = status_of(serving)
    text = "forwards run eagerly, slower than with CUDA graphs: capturing failed: RuntimeError: x"
    worse = (("chat-1", Degradation(reason="CudaGraphsMissed", message=text)),)
    seen = replace(world(deployment=replicas(1), pods=[SERVING], previous=calm), degraded=worse)
    status = status_of(seen)
    (condition,) = [each for each in status["conditions"] if each["type"] == "Degraded"]
    assert condition["status"] == "True"
    assert condition["reason"] == "CudaGraphsMissed"
    assert condition["message"] == f"chat-1: {text}"
    (event,) = events.transitions(seen.resource, status, NOW)
    assert (event["reason"], event["type"]) == ("CudaGraphsMissed", "Warning")
    assert event["message"] == f"chat-1: {text}"
    again = replace(world(deployment=replicas(1), pods=[SERVING], previous=status), degraded=worse)
    assert events.transitions(again.resource, status_of(again), LATER) == ()
    well = world(deployment=replicas(1), pods=[SERVING], previous=status)
    assert events.transitions(well.resource, status_of(well), LATER) == ()


def test_fields_of_a_newer_definition_are_left_out_and_named(world):
    """The definition is upgraded before the operator, and its new defaults reach the old one."""
    before = world()
    after = world()
    entry = {"from": 1, "candidateSteps": [1, 3]}
    before.resource["spec"]["speculation"]["adaptive"] = {"batchSizes": [entry]}
    after.resource["spec"]["speculation"]["adaptive"] = {"batchSizes": [entry | {"cap": 2}]}
    after.resource["spec"] |= {"tomorrow": {"mode": "Auto"}}
    after.resource["spec"]["lifecycle"] = {"napSeconds": 3}
    decided = plan(after, SETTINGS)
    assert decided.config_hash == plan(before, SETTINGS).config_hash
    assert [w.manifest for w in decided.writes] == [
        w.manifest for w in plan(before, SETTINGS).writes
    ]
    shown = status_of(after)
    assert conditions(shown)["ConfigResolved"] == ("True", "FieldsIgnored")
    assert "spec.tomorrow" in message(shown, "ConfigResolved")
    assert "spec.lifecycle.napSeconds" in message(shown, "ConfigResolved")
    assert "spec.speculation.adaptive.batchSizes.0.cap" in message(shown, "ConfigResolved")


def test_warnings_of_a_table_are_in_the_status_and_an_event(world):
    """They change nothing else, and go with the table."""
    entry = {"from": 1, "candidateSteps": [1, 3], "upHysteresis": -1, "downHysteresis": 1}
    observed = world()
    observed.resource["spec"]["speculation"]["adaptive"] = {"policy": "Ema", "batchSizes": [entry]}
    shown = status_of(observed)
    assert conditions(shown)["ConfigResolved"] == ("True", "TableWarnings")
    text = message(shown, "ConfigResolved")
    assert text.startswith("speculation.adaptive.batchSizes from 1: numSteps 1 rises to 3")
    assert text.endswith("lower downHysteresis 1 below upHysteresis -1")
    posted = {each["reason"]: each for each in events.transitions(observed.resource, shown, NOW)}
    assert posted["TableWarnings"]["type"] == "Warning"
    assert posted["TableWarnings"]["message"] == text
    observed.resource["status"] = shown
    assert events.transitions(observed.resource, status_of(observed), LATER) == ()
    entry["downHysteresis"] = -2
    assert conditions(status_of(observed))["ConfigResolved"] == ("True", "Resolved")


def test_warnings_of_a_table_stand_next_to_unknown_fields(world):
    entry = {"from": 1, "candidateSteps": [1, 3], "ceilingCoeff": 1, "cap": 2}
    observed = world()
    observed.resource["spec"]["speculation"]["adaptive"] = {"policy": "Ema", "batchSizes": [entry]}
    shown = status_of(observed)
    assert conditions(shown)["ConfigResolved"] == ("True", "FieldsIgnored")
    assert "batchSizes.0.cap" in message(shown, "ConfigResolved")
    assert "raise ceilingCoeff to 4 or set it to 0" in message(shown, "ConfigResolved")


def test_what_is_wrong_beside_a_newer_field_is_still_refused(world):
    observed = world()
    observed.resource["spec"] |= {"tomorrow": 1, "replicas": -1}
    assert conditions(status_of(observed))["ConfigResolved"] == ("False", "Invalid")


def test_activity_is_written_as_observed(example):
    activity = {"until": "2026-11-23T01:30:00Z", "tokensPerSecond": [5], "draftSteps": []}
    activity["acceptLengthHundredths"] = [210]
    measured = {"acceptLength": "2.10", "tokensPerSecond": "5"}
    seen = Observed(example(), {}, activity=activity, measured=measured)
    decided = plan(seen, SETTINGS)
    written = status(seen, decided, Outcome(), NOW)
    assert (written["activity"], written["measured"]) == (activity, measured)
    assert "activity" not in status(replace(seen, activity=None), decided, Outcome(), NOW)
