"""What the operator decides to do: tables of (observed) to (plan)."""

import copy
from dataclasses import replace

import pytest

from specdecode_api import names
from specdecode_operator import owned
from specdecode_operator.objects import resource
from specdecode_operator.objects.kinds import child_id
from specdecode_operator.objects.observed import Observed
from specdecode_operator.plan.plan import RefusalReason, plan
from specdecode_operator.plan.writes import Cause
from specdecode_operator.settings import Settings

SETTINGS = Settings(engine_image="specdecode-engine:test")


@pytest.fixture
def observe(build, live):
    """A resource with all its children in place, and optional changes to them."""

    def with_children(manifest, *, without=(), pods=(), **changes):
        children = {kind: live(child) for kind, child in build(manifest).items()}
        for kind in without:
            del children[kind]
        for kind, change in changes.items():
            change(children[kind])
        return Observed(
            manifest, {child_id(child): child for child in children.values()}, tuple(pods)
        )

    return with_children


def complete(deployment):
    replicas = deployment["spec"]["replicas"]
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    deployment["status"] = {"observedGeneration": 1, **dict.fromkeys(counts, replicas)}


def written(decided):
    return [(write.manifest["kind"], write.cause) for write in decided.writes]


def test_all_children_of_a_new_resource_are_written_workload_last(example):
    decided = plan(Observed(example(replicas=2), {}), SETTINGS)
    assert written(decided) == [
        ("ServiceAccount", Cause.MISSING),
        ("ConfigMap", Cause.MISSING),
        ("Service", Cause.MISSING),
        ("PodDisruptionBudget", Cause.MISSING),
        ("Deployment", Cause.MISSING),
    ]
    assert not any(write.is_present for write in decided.writes)


def test_nothing_is_written_when_all_is_as_desired(example, observe):
    decided = plan(observe(example(replicas=2)), SETTINGS)
    assert (decided.writes, decided.prunes) == ((), ())
    assert decided.config_hash is not None


def test_a_changed_spec_reaches_exactly_the_children_it_concerns(example, observe):
    observed = observe(example())
    observed.resource["status"] = {"configHash": "v1-before"}
    observed.resource["spec"]["replicas"] = 0
    assert written(plan(observed, SETTINGS)) == [("Deployment", Cause.CHANGED)]
    observed.resource["spec"]["pageSize"] = 32
    assert written(plan(observed, SETTINGS)) == [
        ("ConfigMap", Cause.MISSING),
        ("Deployment", Cause.CHANGED),
    ]


def test_an_edited_child_is_drift(example, observe):
    def scale(deployment):
        deployment["spec"]["replicas"] = 5

    decided = plan(observe(example(), Deployment=scale), SETTINGS)
    assert written(decided) == [("Deployment", Cause.DRIFTED)]
    assert decided.writes[0].is_present


def test_what_others_add_is_not_drift(example, observe):
    def decorate(child):
        child["metadata"]["annotations"]["example.com/note"] = "hello"
        child["metadata"]["labels"]["team"] = "a"

    def inject(deployment):
        deployment["spec"]["template"]["spec"]["containers"].append({"name": "sidecar"})

    observed = observe(example(), Service=decorate, Deployment=inject)
    assert written(plan(observed, SETTINGS)) == []


def test_a_removed_field_is_written_although_the_rest_matches(example, observe):
    observed = observe(example(engine={"device": "CPU", "threads": 2}))
    observed.resource["status"] = {"configHash": "v1-before"}
    observed.resource["spec"]["engine"] = {"device": "CPU"}
    assert ("Deployment", Cause.CHANGED) in written(plan(observed, SETTINGS))


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({}, Cause.MISSING),
        ({"observedGeneration": 1, "configHash": "the same"}, Cause.DRIFTED),
        ({"observedGeneration": 0, "configHash": "the same"}, Cause.MISSING),
    ],
)
def test_a_missing_child_is_drift_once_it_was_reported(
    status, cause, example, observe, config_hash
):
    manifest = example()
    if "configHash" in status:
        status = status | {"configHash": config_hash(manifest)}
    manifest["status"] = status
    decided = plan(observe(manifest, without=["ConfigMap", "Service"]), SETTINGS)
    assert written(decided) == [("ConfigMap", cause), ("Service", cause)]


def test_a_child_of_somebody_else_counts_as_absent(example, observe):
    def belong_to_another(service):
        service["metadata"]["ownerReferences"][0]["uid"] = "uid-2"

    (write,) = plan(observe(example(), Service=belong_to_another), SETTINGS).writes
    assert (write.manifest["kind"], write.is_present) == ("Service", False)


def test_a_budget_goes_with_the_second_replica(example, observe):
    observed = observe(example(replicas=2))
    observed.resource["spec"]["replicas"] = 1
    decided = plan(observed, SETTINGS)
    assert [child["kind"] for child in decided.prunes] == ["PodDisruptionBudget"]


def pod(config_hash):
    return {"metadata": {"name": "p", "annotations": {names.ANNOTATION_CONFIG_HASH: config_hash}}}


@pytest.mark.parametrize(
    ("is_complete", "pod_hash", "phase", "is_pruned"),
    [
        (True, None, "", True),
        (False, None, "", False),
        (True, "old", "Running", False),
        (True, "old", "Failed", True),
    ],
)
def test_an_old_boot_file_stays_until_no_pod_can_need_it(
    is_complete, pod_hash, phase, is_pruned, example, observe, build, live
):
    old = live(build(example(pageSize=32))["ConfigMap"])
    old_hash = old["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH]
    pods = (pod(old_hash) | {"status": {"phase": phase}},) if pod_hash else ()
    keep = (lambda _: None) if not is_complete else complete
    observed = observe(example(), pods=pods, Deployment=keep)
    observed = observed.with_children([old], [])
    prunes = plan(observed, SETTINGS).prunes
    assert prunes == ((old,) if is_pruned else ())


def policy_of_vllm(example, live):
    """The live NetworkPolicy of the example, from before its runtime changed."""
    earlier = example("vllm")
    earlier["metadata"]["name"] = example()["metadata"]["name"]
    (policy,) = owned.network_policies(resource.parse(earlier), "", ())
    return live(policy)


@pytest.mark.parametrize(
    ("is_complete", "labels", "phase", "is_pruned"),
    [
        (True, {}, "Running", True),
        (False, {}, "Running", False),
        (True, {names.LABEL_RUNTIME: "VLLM"}, "Running", False),
        (True, {names.LABEL_RUNTIME: "VLLM"}, "Failed", True),
    ],
)
def test_a_policy_stays_until_no_pod_with_vllm_can_run(
    is_complete, labels, phase, is_pruned, example, observe, live
):
    """Their port has no keys."""
    old = policy_of_vllm(example, live)
    running = pod("v1-abc") | {"status": {"phase": phase}}
    running["metadata"]["labels"] = labels
    keep = (lambda _: None) if not is_complete else complete
    observed = observe(example(), pods=(running,), Deployment=keep).with_children([old], [])
    prunes = plan(observed, SETTINGS).prunes
    assert [each["kind"] for each in prunes] == (["NetworkPolicy"] if is_pruned else [])


def test_a_policy_stays_while_the_deployment_makes_pods_with_vllm(example, observe, live):
    old = policy_of_vllm(example, live)

    def make_vllm(deployment):
        complete(deployment)
        deployment["spec"]["template"]["metadata"]["labels"][names.LABEL_RUNTIME] = "VLLM"

    observed = observe(example(), Deployment=make_vllm).with_children([old], [])
    assert plan(observed, SETTINGS).prunes == ()


def ready_pod(runtime):
    labels = {names.LABEL_ROLE: names.ROLE_STABLE}
    labels |= {names.LABEL_RUNTIME: runtime} if runtime != "Specdecode" else {}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": "p", "uid": runtime, "labels": labels}, "status": ready}


@pytest.mark.parametrize(
    ("wanted", "ready", "used"),
    [
        ("VLLM", ["Specdecode"], "Specdecode"),
        ("VLLM", ["Specdecode", "VLLM"], "VLLM"),
        ("VLLM", [], "VLLM"),
        ("Specdecode", ["VLLM"], "VLLM"),
        ("Specdecode", ["VLLM", "Specdecode"], "Specdecode"),
        ("Specdecode", [], "Specdecode"),
    ],
)
def test_routers_use_the_runtime_that_is_ready(wanted, ready, used, example, observe):
    """Otherwise a change of runtime would answer nothing while new engines start."""
    engine = {"runtime": wanted}
    spec = {"router": {}, "rollout": {"mode": "Manual"}, "engine": engine, "speculation": {}}
    observed = observe(example(**spec), pods=tuple(map(ready_pod, ready)))
    found = {
        (each.manifest["kind"], each.manifest["metadata"]["name"]): each.manifest["spec"]
        for each in plan(observed, SETTINGS).writes
        if "spec" in each.manifest
    }
    name = observed.resource["metadata"]["name"]
    (container,) = found["Deployment", f"{name}-router"]["template"]["spec"]["containers"]
    assert ("--runtime=vllm" in container["args"]) == (used == "VLLM")
    selector = found["Service", f"{name}-engines"]["selector"]
    assert (names.LABEL_RUNTIME in selector) == (used == "VLLM")


def test_routers_of_a_refused_spec_stay_with_the_engines_that_run(example, observe):
    refused = {"template": {"spec": {"restartPolicy": "Never"}}}
    spec = {"router": {}, "rollout": {"mode": "Manual"}, "speculation": {}, **refused}
    wanted = example(**spec, engine={"runtime": "VLLM"})
    observed = observe(example(), pods=(ready_pod("Specdecode"),))
    decided = plan(replace(observed, resource=wanted), SETTINGS)
    assert decided.refused is not None
    found = [each.manifest for each in decided.writes if each.manifest["kind"] == "Deployment"]
    (container,) = found[0]["spec"]["template"]["spec"]["containers"]
    assert "--runtime=vllm" not in container["args"]


def test_strangers_are_never_pruned(example, observe, build, live):
    stranger = live(build(example(pageSize=32))["ConfigMap"])
    stranger["metadata"]["ownerReferences"] = []
    observed = observe(example(), Deployment=complete).with_children([stranger], [])
    assert plan(observed, SETTINGS).prunes == ()


@pytest.mark.parametrize(
    ("spec", "reason", "sentence"),
    [
        ({"pageSize": 3}, RefusalReason.INVALID, "spec.pageSize"),
        ({"speculation": {"topk": 99}}, RefusalReason.INVALID, "spec.speculation.topk"),
        (
            {"template": {"spec": {"restartPolicy": "Never"}}},
            RefusalReason.INVALID,
            "template.spec.restartPolicy: cannot be patched; it is Always",
        ),
    ],
)
def test_a_refused_spec_leaves_pods_alone_and_keeps_the_service(
    spec, reason, sentence, example, observe
):
    observed = observe(example(), without=["Service"])
    observed.resource["spec"] |= copy.deepcopy(spec)
    decided = plan(observed, SETTINGS)
    assert (written(decided), decided.prunes) == ([("Service", Cause.MISSING)], ())
    never_served = Observed(observed.resource, {})
    assert plan(never_served, SETTINGS).writes == ()
    assert decided.refused is not None
    assert decided.refused.reason is reason
    assert any(sentence in each for each in decided.refused.sentences), decided.refused


def test_a_resource_that_is_being_deleted_is_left_to_the_garbage_collector(example):
    manifest = example()
    manifest["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    decided = plan(Observed(manifest, {}), SETTINGS)
    assert decided.is_ending
    assert (decided.writes, decided.prunes) == ((), ())


def test_planning_changes_nothing_it_is_given(example, observe):
    observed = observe(example(), without=["Service"])
    before = copy.deepcopy(observed)
    plan(observed, SETTINGS)
    assert observed == before
