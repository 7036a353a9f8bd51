"""Manual, Recommend and Auto do what is documented, and none writes the spec."""

import copy

import pytest

FASTER_AT_1 = {1: 0.010, 3: 0.030, 5: 0.050}


def conditions(made):
    return {each["type"]: each for each in made.status["conditions"]}


def test_manual_asks_nobody(world):
    made = world(mode="Manual", guarded=False)
    made.seconds_by_num_steps = FASTER_AT_1
    made.look_at = lambda look: pytest.fail("pods were looked at")
    made.run(600)
    assert "recommendation" not in made.status
    assert "RecommendationReady" not in conditions(made)


def test_recommend_writes_the_status_and_nothing_else(world):
    made = world(mode="Recommend", guarded=False)
    made.seconds_by_num_steps = FASTER_AT_1
    spec, children = copy.deepcopy(made.resource["spec"]), copy.deepcopy(made.children)
    made.run(600)
    found = made.status["recommendation"]
    (entry,) = (each for each in found["table"] if each["from"] == 4)
    assert 5 not in entry["candidateSteps"]
    assert found["expectedGain"].startswith("+")
    assert "kubectl patch sdd chat-standalone" in found["patchHint"]
    assert conditions(made)["RecommendationReady"]["reason"] == "Recommended"
    assert made.resource["spec"] == spec
    assert made.children == children
    assert made.record.is_empty


def test_a_recommendation_that_stays_is_not_written_again(world):
    made = world(mode="Recommend", guarded=False)
    made.seconds_by_num_steps = FASTER_AT_1
    made.run(60)
    first = made.status
    made.run(600)
    assert made.status == first


def test_too_little_traffic_is_reported(world):
    made = world(mode="Recommend", guarded=False)
    made.run(60)
    assert conditions(made)["RecommendationReady"]["reason"] == "NotEnoughTraffic"


def test_auto_tries_a_better_table_and_puts_it_in_force(world):
    made = world(mode="Auto", guarded=False)
    spec, pods = copy.deepcopy(made.resource["spec"]), set(made.engines)
    made.seconds_by_num_steps = FASTER_AT_1
    made.speeds = {5: 0.02, 1: 0.016}
    made.run(200, until=lambda w: w.record.trial)
    assert made.record.trial.origin == "Recommendation"
    ended = made.run_to_end()
    assert (ended.verdict, ended.reason) == ("Promoted", "Faster")
    made.run(30)
    assert {made.num_steps(engine) for engine in made.engines.values()} == {1}
    assert set(made.engines) == pods
    assert made.resource["spec"] == spec
    effective = made.status["effective"]
    assert effective["reason"] == "Promoted"
    assert "mode Auto" in effective["message"]
    assert made.record.alpha_budget.promotions == (1,)


def test_auto_leaves_what_is_no_better_and_does_not_try_it_again(world):
    made = world(mode="Auto", guarded=False)
    made.seconds_by_num_steps = FASTER_AT_1
    made.speeds = {5: 0.02, 1: 0.021}
    ended = made.run_to_end()
    assert ended.verdict in ("Inconclusive", "RolledBack")
    made.run(2000)
    assert len(made.record.history) == 1
    assert conditions(made)["RecommendationReady"]["reason"] == "Held"
    assert {made.num_steps(engine) for engine in made.engines.values()} == {5}


def test_leaving_auto_ends_its_trial(world):
    made = world(mode="Auto", guarded=False)
    made.seconds_by_num_steps = FASTER_AT_1
    assert made.run(200, until=lambda w: w.record.trial)
    made.edit(rollout=made.resource["spec"]["rollout"] | {"mode": "Recommend"})
    ended = made.run_to_end()
    assert (ended.verdict, ended.reason) == ("Superseded", "ModeChanged")
    assert {made.num_steps(engine) for engine in made.engines.values()} == {5}


def test_an_edit_goes_before_a_recommendation(world, speculate):
    made = world(mode="Auto")
    made.seconds_by_num_steps = FASTER_AT_1
    assert made.run(200, until=lambda w: w.record.trial)
    made.edit(speculation=speculate(3))
    made.run(60)
    assert made.record.history[0].reason == "SpecChanged"
    assert made.record.trial.origin == "Edit"


def test_a_new_configuration_makes_a_tuned_table_invalid(world):
    made = world(mode="Auto", guarded=False)
    made.seconds_by_num_steps = FASTER_AT_1
    made.speeds = {5: 0.02, 1: 0.016}
    made.run_to_end()
    made.seconds_by_num_steps = {}
    made.edit(pageSize=32)
    made.run(60)
    assert {made.num_steps(engine) for engine in made.engines.values()} == {5}
    assert made.record.tuned is None
