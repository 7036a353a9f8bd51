"""Limits of trials: the strategy, the exploration budget, the switch for all, the engine image."""

import copy
from dataclasses import replace as change
from typing import Any, cast

import pytest

from specdecode_api import names
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects.kinds import DEPLOYMENT, ChildId
from specdecode_operator.objects.observed import Key
from specdecode_operator.objects.resource import parse
from specdecode_operator.objects.rollout import ImageRollouts
from specdecode_operator.plan.plan import plan
from specdecode_operator.process.run import _build
from specdecode_operator.trial.record.record import Record, Spent
from specdecode_operator.trial.record.state import Kind
from specdecode_operator.trial.steps.exploration import rest_after_s, share, worst_case_s

FASTER_AT_1 = {1: 0.010, 3: 0.030, 5: 0.050}
KEY = Key("default", "chat-standalone")
STABLE = ChildId(DEPLOYMENT.kind, "chat-standalone")
DAY_S = 86_400.0


def conditions(made):
    return {each["type"]: each for each in made.status["conditions"]}


def image_of(made):
    return made.children[STABLE]["spec"]["template"]["spec"]["containers"][0]["image"]


# --- the strategy is obeyed or refused


def test_a_candidate_that_needs_a_restart_cannot_be_hot(world):
    made = world(strategy="Hot")
    made.edit(pageSize=32)
    made.run(120)
    assert made.record.trial is None
    assert made.record.history == ()
    message = made.status["effective"]["message"]
    assert "rollout.strategy Hot cannot try" in message
    assert "set it to Auto, Canary or Switchback" in message


def test_hot_with_one_replica_is_refused(world, speculate):
    made = world(strategy="Hot", replicas=1)
    made.edit(speculation=speculate(3))
    made.run(120)
    assert made.record.trial is None
    assert "needs 2 replicas, and replicas is 1" in made.status["effective"]["message"]


def test_a_canary_of_a_table_of_the_serving_configuration_is_refused(world, speculate):
    made = world(strategy="Canary")
    made.edit(speculation=speculate(3))
    made.run(120)
    assert made.record.trial is None
    assert "set it to Auto, Hot or Switchback" in made.status["effective"]["message"]


@pytest.mark.parametrize(("strategy", "kind"), [("Hot", Kind.HOT), ("Switchback", Kind.SWITCHBACK)])
def test_a_table_is_tried_by_the_strategy_of_the_spec(world, speculate, strategy, kind):
    made = world(strategy=strategy)
    made.edit(speculation=speculate(3))
    assert made.run(60, until=lambda w: w.record.trial)
    assert made.record.trial.kind is kind


# --- the exploration budget


def test_a_trial_that_may_exceed_the_budget_does_not_start(world):
    made = world(mode="Auto", guarded=False, guard={"maxDuration": "3h"})
    made.seconds_by_num_steps = FASTER_AT_1
    made.run(300)
    assert made.record.trial is None
    message = conditions(made)["RecommendationReady"]["message"]
    assert "up to 6.2% of a day's pod-seconds" in message
    assert "(0.0% by trials of the last 24 hours)" in message
    assert "rollout.exploration.maxCandidateShare is 5%" in message


def test_no_more_trials_start_than_a_day_allows(world):
    made = world(mode="Auto", guarded=False, exploration={"maxTrialsPerDay": 1})
    made.seconds_by_num_steps = FASTER_AT_1
    made.speeds = {5: 0.02, 1: 0.016}
    assert made.run_to_end().verdict == "Promoted"
    exploration = made.status["exploration"]
    assert exploration["trialsToday"] == 1
    assert 0.0 < float(exploration["candidateShare"].removesuffix("%")) < 5.0
    assert float(exploration["alphaBudget"]) > 0.0
    made.seconds_by_num_steps = {1: 0.050, 3: 0.030, 5: 0.010}
    made.run(1000)
    assert made.record.trial is None
    assert "maxTrialsPerDay is 1" in conditions(made)["RecommendationReady"]["message"]


def test_the_rest_doubles_after_each_inconclusive_trial_up_to_a_day(world):
    made = world(mode="Auto", guarded=False)
    rollout = made.resource["spec"]["rollout"] | {"guard": {"coolDown": "30m"}}
    made.edit(rollout=rollout)
    spec = parse(made.resource).spec
    rests = [rest_after_s(Record(inconclusive=count), spec.rollout) for count in (0, 1, 2, 3, 10)]
    assert rests == [1800.0, 1800.0, 3600.0, 7200.0, DAY_S]


def test_the_worst_case_is_the_time_of_pods_that_may_run_the_candidate(world):
    made = world(mode="Auto", guarded=False, replicas=20)
    spec = parse(made.resource).spec

    def worst_s(kind, has_restarts=False):
        return worst_case_s(kind, spec, spec.rollout, has_restarts=has_restarts)

    assert worst_s(Kind.HOT) == 0.5 * 8 * 1500.0
    assert worst_s(Kind.SWITCHBACK) == 0.5 * 1500.0
    assert worst_s(Kind.SWITCHBACK, has_restarts=True) == 0.5 * 20 * 1500.0
    assert worst_s(Kind.CANARY) == 2 * 1500.0
    spent = (Spent(0.0, 864.0), Spent(-DAY_S, 10_000.0))
    assert share(spent, spec, 10.0) == 864.0 / (20 * DAY_S)


def spent(made):
    """Origins and pod-seconds of the trials of the last day."""
    shown = made.status["exploration"]["spent"]
    return [(each["origin"], float(each["candidatePodSeconds"])) for each in shown]


@pytest.mark.parametrize("budget", ["Enforce", "Exempt"])
def test_a_trial_of_a_user_begins_within_the_budget_or_if_it_is_exempt(world, try_out, budget):
    made = world(guarded=False, exploration={"maxCandidateShare": "0.5%"})
    try_out(made, explorationBudget=budget)
    made.run(30)
    status = made.trials["mine"]["status"]
    if budget == "Exempt":
        assert made.record.trial.name == "mine"
        assert spent(made) == [("User", 0.5 * 2 * 1500.0)]
        return
    assert (status["verdict"], status["reason"]) == ("Aborted", "BudgetExceeded")
    assert "up to 0.9% of a day's pod-seconds" in status["message"]
    assert "rollout.exploration.maxCandidateShare is 0.5%" in status["message"]
    assert "explorationBudget: Exempt" in status["message"]
    assert "exploration" not in made.status
    try_out(made, name="shorter", guard={"maxDuration": "10m"})
    made.run(30)
    assert made.record.trial.name == "shorter"


def test_an_edit_always_begins_and_its_cost_counts_for_later_trials(world, speculate, try_out):
    made = world(exploration={"maxCandidateShare": "0.5%"})
    made.edit(speculation=speculate(3))
    ended = made.run_to_end()
    assert ended.origin == "Edit"
    ((origin, cost_s),) = spent(made)
    assert origin == "Edit"
    assert 0.0 < cost_s < 0.5 * 2 * 1500.0
    try_out(made, candidate={"speculation": speculate(1)}, guard={"maxDuration": "10m"})
    made.run(30)
    assert made.trials["mine"]["status"]["reason"] == "BudgetExceeded"


def test_trials_that_others_asked_for_leave_the_number_of_the_operators_own(world, speculate):
    made = world(mode="Auto", exploration={"maxTrialsPerDay": 1})
    made.edit(speculation=speculate(3))
    made.run_to_end()
    made.seconds_by_num_steps = FASTER_AT_1
    assert made.run(4000, until=lambda w: w.record.trial)
    assert made.record.trial.origin == "Recommendation"
    assert made.status["exploration"]["trialsToday"] == 2


def test_a_lost_budget_is_at_least_that_of_the_trials_that_are_kept(world):
    made = world(mode="Auto", guarded=False)
    made.seconds_by_num_steps = FASTER_AT_1
    made.speeds = {5: 0.02, 1: 0.016}
    made.run_to_end()
    before, cost_s = made.status["exploration"], spent(made)[0][1]
    status = {name: value for name, value in made.status.items() if name != "exploration"}
    made.resource = {**made.resource, "status": status}
    made.end_operator()
    made.run(30)
    after = made.status["exploration"]
    assert after["trialsToday"] == before["trialsToday"] == 1
    assert after["trials"] == before["trials"] == 1
    assert spent(made)[0][1] >= cost_s
    assert float(after["alphaBudget"]) <= float(before["alphaBudget"])


# --- without trials


def test_without_trials_a_running_one_ends_and_engines_return(world, speculate):
    made = world()
    made.edit(speculation=speculate(3))
    assert made.run(200, until=lambda w: 3 in {w.num_steps(e) for e in w.engines.values()})
    made.settings = change(made.settings, has_trials=False)
    made.run(60)
    assert made.record.history[0].reason == "TrialsOff"
    assert made.record.trial is None
    assert {made.num_steps(engine) for engine in made.engines.values()} == {5}
    made.run(120)
    assert "--no-trials" in made.status["effective"]["message"]


# --- a new default engine image


def test_a_new_engine_image_replaces_no_pinned_pods(world):
    made = world(guarded=False)
    before = set(made.engines), image_of(made)
    made.settings = change(made.settings, engine_image="specdecode-engine:new")
    made.run(60)
    assert (set(made.engines), image_of(made)) == before


def test_a_new_engine_image_rolls_where_the_policy_is_roll(world):
    made = world(guarded=False)
    made.edit(engine=made.resource["spec"].get("engine", {}) | {"upgradePolicy": "Roll"})
    made.settings = change(made.settings, engine_image="specdecode-engine:new")
    made.run(60)
    assert image_of(made) == "specdecode-engine:new"


def test_a_new_engine_image_waits_while_too_many_resources_roll(world):
    made = world(guarded=False)
    made.edit(engine=made.resource["spec"].get("engine", {}) | {"upgradePolicy": "Roll"})
    settings = change(made.settings, engine_image="specdecode-engine:new")
    waiting = plan(made.observed, settings, made.now_s, None, made.memory, lambda: False)
    assert waiting.config_hash == made.status["configHash"]
    rolling = plan(made.observed, settings, made.now_s, None, made.memory, lambda: True)
    assert rolling.config_hash != made.status["configHash"]


def test_rollouts_of_a_new_image_are_limited_until_they_are_complete():
    rollouts = ImageRollouts(2)
    assert rollouts.admit("a")
    assert rollouts.admit("b")
    assert not rollouts.admit("c")
    assert rollouts.is_waiting("c")
    assert rollouts.admit("a")
    rollouts.note("a", is_complete=False, has_old_pods=False)
    assert not rollouts.admit("c")
    rollouts.note("a", is_complete=True, has_old_pods=False)
    rollouts.note("d", is_complete=False, has_old_pods=True)
    assert not rollouts.admit("c")
    rollouts.forget("d")
    assert rollouts.admit("c")


@pytest.mark.parametrize(
    ("status", "deleted", "is_rolling"),
    [
        ({"phase": "Running"}, {}, True),
        ({"phase": "Running"}, {"deletionTimestamp": "2026-11-21T12:00:00Z"}, True),
        ({"phase": "Failed", "reason": "Evicted"}, {}, False),
        ({"phase": "Succeeded"}, {}, False),
    ],
)
def test_a_pod_that_has_ended_is_no_part_of_a_rollout(world, status, deleted, is_rolling):
    """Such a pod of an older image stays: a later disturbance would count as a rollout."""
    made, nothing = world(guarded=False), cast("Any", None)
    settings = change(made.settings, engine_image=image_of(made))
    reconciler = _build(settings, nothing, nothing, Metrics("test")).reconciler
    old = copy.deepcopy(next(iter(made.engines.values())).pod)
    hashes = {"annotations": {names.ANNOTATION_CONFIG_HASH: "old"}}
    old["metadata"] |= {"name": "old", "uid": "old", **hashes, **deleted}
    made.evicted.append({**old, "status": status})
    made.children[STABLE]["status"]["availableReplicas"] = 0  # a node restarts
    reconciler._note_rollout(KEY, made.observed)
    assert reconciler.image_rollouts.is_rolling(KEY) is is_rolling


def test_a_new_engine_image_of_a_guarded_resource_is_tried_first(world):
    made = world(strategy="Canary")
    old = image_of(made)
    made.settings = change(made.settings, engine_image="specdecode-engine:new")
    assert made.run(60, until=lambda w: w.record.trial)
    trial = made.record.trial
    assert trial.kind is Kind.CANARY
    assert trial.target.spec["engine"]["image"] == "specdecode-engine:new"
    made.run(60)
    images = {
        engine.pod["spec"]["containers"][0]["image"]
        for engine in made.engines.values()
        if engine.pod["metadata"]["labels"][names.LABEL_ROLE] == names.ROLE_CANARY
    }
    assert images == {"specdecode-engine:new"}
    assert image_of(made) == old
