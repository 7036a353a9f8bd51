"""An exception in a part of a reconcile stops no other: Service and replicas follow."""

import pytest

from specdecode_api import names
from specdecode_operator.objects.kinds import DEPLOYMENT, SERVICE, ChildId
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.parts import MAX_ERROR, Failures, Part, described
from specdecode_operator.plan import held, matching, plan
from specdecode_operator.settings import Settings
from specdecode_operator.status import events, status
from specdecode_operator.trial.steps import begin, learning, machine

NAME = "chat-standalone"
FASTER_AT_1 = {1: 0.010, 3: 0.030, 5: 0.050}


def raising(*_, **__):
    raise KeyError("planted")


def condition(made, kind="PartFailed"):
    return next((each for each in made.status["conditions"] if each["type"] == kind), None)


def assert_service_and_replicas_follow(made, replicas):
    del made.children[ChildId(SERVICE.kind, NAME)]
    made.edit(replicas=replicas)
    before = made.resource
    made.reconcile()
    assert ChildId(SERVICE.kind, NAME) in made.children
    assert made.children[ChildId(DEPLOYMENT.kind, NAME)]["spec"]["replicas"] == replicas
    return events.transitions(before, made.status, made.observed.at)


@pytest.mark.parametrize("place", ["proceed", "_with_pods"])
def test_a_trial_that_raises_ends_and_stops_nothing(place, world, try_out, monkeypatch):
    made = world()
    try_out(made)
    assert made.run(60, until=lambda each: each.record.trial)
    monkeypatch.setattr(machine, place, raising)
    posted = assert_service_and_replicas_follow(made, 4)
    assert made.record.trial is None
    ended = made.trials["mine"]["status"]
    assert (ended["verdict"], ended["reason"]) == ("Aborted", "InternalError")
    assert "KeyError: 'planted'; create another SpecDecodeTrial" in ended["message"]
    found = condition(made)
    assert (found["status"], found["reason"]) == ("True", "TrialFailed")
    assert "trial mine: KeyError: 'planted'; engines run what is in force" in found["message"]
    assert "TrialFailed" in [each["reason"] for each in posted]
    monkeypatch.undo()
    made.reconcile()
    assert condition(made) is None


@pytest.mark.parametrize("place", ["stable_pods", "trial_objects", "_trial_objects"])
def test_a_trial_whose_objects_raise_ends(place, world, try_out, monkeypatch):
    made = world()
    try_out(made)
    assert made.run(60, until=lambda each: each.record.trial)
    real = getattr(plan, place)

    def raising_for_trials(observed, step, *more):
        return raising() if step.record.trial else real(observed, step, *more)

    monkeypatch.setattr(plan, place, raising_for_trials)
    assert_service_and_replicas_follow(made, 3)
    assert made.trials["mine"]["status"]["reason"] == "InternalError"
    assert condition(made)["reason"] == "TrialFailed"


def test_a_candidate_that_raises_is_refused(world, try_out, monkeypatch):
    made = world()
    monkeypatch.setattr(begin, "user_trial", raising)
    try_out(made)
    made.reconcile()
    assert_service_and_replicas_follow(made, 3)
    ended = made.trials["mine"]["status"]
    assert (ended["verdict"], ended["reason"]) == ("Aborted", "InvalidCandidate")


def test_an_edit_whose_trial_cannot_begin_waits(world, speculate, monkeypatch):
    made = world()
    monkeypatch.setattr(machine, "begin", raising)
    made.edit(speculation=speculate(3))
    assert_service_and_replicas_follow(made, 3)
    assert "cannot be tried: KeyError: 'planted'" in made.status["effective"]["message"]
    assert condition(made)["reason"] == "TrialFailed"


@pytest.mark.parametrize("module", [machine, learning])
def test_a_recommendation_that_raises_stays(module, world, monkeypatch):
    made = world(mode="Recommend", guarded=False)
    made.seconds_by_num_steps = FASTER_AT_1
    assert made.run(300, until=lambda each: "recommendation" in each.status)
    before = made.status["recommendation"]
    monkeypatch.setattr(module, "advise" if module is machine else "shown", raising)
    made.run(60)
    assert_service_and_replicas_follow(made, 3)
    assert made.status["recommendation"] == before
    made.run(60, until=lambda each: condition(each))
    assert condition(made)["reason"] == "RecommendationFailed"
    assert "rollout.mode: Manual" in condition(made)["message"]


def test_an_object_that_cannot_be_compared_is_written(world, monkeypatch):
    made = world()
    monkeypatch.setattr(matching, "is_subset", raising)
    written = made.reconcile().writes
    assert {each.manifest["kind"] for each in written} > {SERVICE.kind, DEPLOYMENT.kind}
    assert condition(made)["reason"] == "DriftFailed"
    assert f"Service {NAME}: KeyError" in condition(made)["message"]


@pytest.mark.parametrize("place", ["recorded", "recover", "naming_revision"])
def test_whatever_raises_the_service_and_replicas_follow(place, world, monkeypatch):
    made = world()
    monkeypatch.setattr(plan, place, raising)
    decided = plan.plan(made.observed, made.settings, made.now_s)
    assert decided.refused is not None
    assert decided.refused.reason == "InternalError"
    del made.children[ChildId(SERVICE.kind, NAME)]
    made.edit(replicas=7)
    template = made.children[ChildId(DEPLOYMENT.kind, NAME)]["spec"]["template"]
    decided = plan.plan(made.observed, made.settings, made.now_s)
    by_kind = {each.manifest["kind"]: each.manifest for each in decided.writes}
    assert by_kind.keys() == {"Service", "Deployment"}
    assert by_kind["Deployment"]["spec"]["replicas"] == 7
    assert by_kind["Deployment"]["spec"]["template"] == template
    assert [each.part for each in decided.failures] == [Part.CONFIGURATION]


def test_a_status_that_raises_in_a_part_is_written(world, try_out, monkeypatch):
    made = world()
    try_out(made)
    assert made.run(60, until=lambda each: each.record.trial)
    monkeypatch.setattr(status, "health", raising)
    assert_service_and_replicas_follow(made, 3)
    assert condition(made, "CanaryHealthy") is None
    assert "condition CanaryHealthy: KeyError" in condition(made)["message"]


def test_a_lost_state_keeps_the_service_and_scales(world):
    made = world()
    made.edit(pageSize=32, replicas=6)
    live = made.children[ChildId(DEPLOYMENT.kind, NAME)]
    lost = {names.ANNOTATION_CONFIG_HASH: "v1-elsewhere"}
    live["spec"]["template"]["metadata"]["annotations"] |= lost
    live["metadata"]["annotations"].pop(names.ANNOTATION_CONFIG_HASH, None)
    made.revisions.clear()
    made.resource = {**made.resource, "status": {"configHash": "v1-elsewhere"}}
    del made.children[ChildId(SERVICE.kind, NAME)]
    decided = plan.plan(made.observed, made.settings, made.now_s)
    assert decided.lost
    by_kind = {each.manifest["kind"]: each.manifest["spec"] for each in decided.writes}
    assert by_kind.keys() == {"Service", "Deployment"}
    assert by_kind["Deployment"] == {**live["spec"], "replicas": 6}


def test_a_resource_that_never_served_gets_no_objects(example):
    assert held.held_objects(Observed(example(), {}), Settings(engine_image="e")) == []


def test_an_error_is_described_in_one_bounded_line():
    assert described(ValueError("a\n  b")) == "ValueError: a b"
    assert described(ValueError()) == "ValueError"
    assert len(described(ValueError("x" * 10_000))) == len("ValueError: ") + MAX_ERROR
    failures = Failures()
    assert failures.attempt(Part.DRIFT, "x", lambda: 1, 2) == 1
    assert failures.attempt(Part.DRIFT, "x", raising, 2) == 2
    assert [each.reason for each in failures.found] == ["DriftFailed"]
