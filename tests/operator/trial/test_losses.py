"""Losses fail safe: nothing is rolled, and the conditions contain the remedy."""

import pytest

from specdecode_api import names
from specdecode_operator.kinds import DEPLOYMENT, ChildId

RECORD = ChildId("ConfigMap", "chat-standalone-rollout")
STABLE = ChildId(DEPLOYMENT.kind, "chat-standalone")


def conditions(made):
    return {each["type"]: each for each in made.status["conditions"]}


@pytest.fixture
def rejected(world):
    """A guarded resource whose spec was tried and rejected."""
    made = world()
    made.edit(pageSize=32)
    assert made.run(60, until=lambda w: w.record.trial)
    made.speeds = {made.record.trial.target.arm.config_hash: 0.03}
    assert made.run_to_end().verdict != "Promoted"
    return made


def lose_state(made):
    del made.children[RECORD]
    made.end_operator()


def test_a_lost_state_rolls_nothing_and_names_the_remedy(rejected):
    before = set(rejected.engines), rejected.children[STABLE]
    lose_state(rejected)
    rejected.run(600)
    assert (set(rejected.engines), rejected.children[STABLE]) == before
    assert RECORD not in rejected.children
    lost = conditions(rejected)["StateLost"]
    assert (lost["status"], lost["reason"]) == ("True", "ConfigurationUnexplained")
    assert "set spec.rollout.editPolicy to Immediate to put the spec in force" in lost["message"]
    assert conditions(rejected)["Ready"]["status"] == "True"


def test_a_resource_restored_without_status_and_state_rolls_nothing(rejected):
    before = set(rejected.engines)
    lose_state(rejected)
    del rejected.resource["status"]
    rejected.run(600)
    assert set(rejected.engines) == before
    assert conditions(rejected)["StateLost"]["status"] == "True"


def test_the_remedy_puts_the_spec_in_force(rejected):
    before = set(rejected.engines)
    lose_state(rejected)
    rejected.run(60)
    rejected.edit(rollout=rejected.resource["spec"]["rollout"] | {"editPolicy": "Immediate"})
    rejected.run(60)
    assert not set(rejected.engines) & before
    assert "StateLost" not in conditions(rejected)


def test_a_lost_state_in_the_middle_of_a_trial_leaves_the_old_configuration(world):
    made = world(strategy="Canary")
    made.edit(pageSize=32)
    assert made.run(200, until=lambda w: len(w.engines) == 6)
    stable = {name for name in made.engines if name.startswith("chat-standalone-0")}
    lose_state(made)
    made.run(120)
    assert stable <= set(made.engines)
    assert conditions(made)["StateLost"]["status"] == "True"


def test_an_edit_together_with_the_guard_is_no_loss(world):
    made = world(guarded=False)
    made.edit(pageSize=32, rollout=made.resource["spec"]["rollout"] | {"editPolicy": "Guarded"})
    made.run(60)
    assert "StateLost" not in conditions(made)
    assert made.status["effective"]["reason"] == "FollowsSpec"


def test_a_verdict_is_in_force_only_when_it_is_stored(world):
    made = world(canary={"replicas": 5})
    made.edit(pageSize=32)
    assert made.run(60, until=lambda w: w.record.trial)
    old, new = made.status["configHash"], made.record.trial.target.arm.config_hash
    made.speeds = {new: 0.015}
    made.refuses_trials = True
    made.run(1500)
    assert made.status["configHash"] == old
    template = made.children[STABLE]["spec"]["template"]["metadata"]
    assert template["annotations"][names.ANNOTATION_CONFIG_HASH] == old


def measuring(made, speculate):
    made.edit(speculation=speculate(3))
    assert made.run(200, until=lambda w: w.record.trial and w.record.trial.evidence.pairs)
    assert made.run(100, until=lambda w: 3 in {w.depth(each) for each in w.engines.values()})


def test_engines_return_to_their_table_while_the_operator_is_away(world, speculate):
    made = world()
    measuring(made, speculate)
    for _ in range(60):
        made.pass_time(10.0)
    assert {made.depth(engine) for engine in made.engines.values()} == {5}
    made.end_operator()
    ended = made.run_to_end()
    assert ended.verdict in ("Promoted", "Inconclusive")


def test_a_read_only_api_server_changes_nothing_that_serves(world, speculate):
    made = world()
    measuring(made, speculate)
    before = set(made.engines), made.children[STABLE], made.resource["status"]
    made.is_read_only = True
    made.run(1800)
    assert (set(made.engines), made.children[STABLE], made.resource["status"]) == before
    made.is_read_only = False
    made.run_to_end()
    assert made.record.trial is None
    assert set(made.engines) == before[0]


def test_a_trial_whose_time_is_over_cannot_go_on_without_the_api_server(world, speculate):
    made = world(guard={"maxDuration": "10m"})
    measuring(made, speculate)
    made.is_read_only = True
    made.run(1800)
    assert {made.depth(engine) for engine in made.engines.values()} == {5}
