"""Losses fail safe: nothing is rolled, and the conditions contain the remedy."""

import copy

import pytest

from specdecode_api import names
from specdecode_operator.objects.kinds import DEPLOYMENT, ChildId

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


def lose_revisions(made):
    made.revisions.clear()
    made.end_operator()


def lose_status(made):
    del made.resource["status"]
    made.end_operator()


def lose_both(made):
    lose_revisions(made)
    lose_status(made)


def lose_all_but_the_config_hash(made):
    lose_revisions(made)
    made.trials.clear()
    lost = ("effective", "exploration", "lastTrial", "activeTrial")
    status = {name: value for name, value in made.status.items() if name not in lost}
    assert status["configHash"]
    made.resource = {**made.resource, "status": status}


def promoted(world, try_out, policy):
    """A resource with a promoted page size in the place of the spec's."""
    made = world(guarded=policy == "Guarded")
    try_out(made, candidate={"pageSize": 32}, promote=True)
    made.run(60)
    assert made.status["effective"]["reason"] == "Promoted"
    return made


@pytest.mark.parametrize("lose", [lose_revisions, lose_both, lose_all_but_the_config_hash])
def test_a_lost_state_rolls_nothing_and_names_the_remedy(rejected, lose):
    before = set(rejected.engines), rejected.children[STABLE]
    lose(rejected)
    rejected.run(600)
    assert (set(rejected.engines), rejected.children[STABLE]) == before
    lost = conditions(rejected)["StateLost"]
    assert (lost["status"], lost["reason"]) == ("True", "ConfigurationUnexplained")
    assert "restore ControllerRevision" in lost["message"]
    assert (
        "kubectl annotate sdd chat-standalone -n default specdecode.io/accept-spec="
        in (lost["message"])
    )
    assert conditions(rejected)["Ready"]["status"] == "True"


@pytest.mark.parametrize("policy", ["Immediate", "Guarded"])
@pytest.mark.parametrize("lose", [lose_revisions, lose_both, lose_all_but_the_config_hash])
def test_a_promotion_that_nothing_explains_is_not_rolled_back(world, try_out, policy, lose):
    made = promoted(world, try_out, policy)
    before = set(made.engines)
    lose(made)
    made.trials.clear()
    made.run(600)
    assert set(made.engines) == before
    assert conditions(made)["StateLost"]["status"] == "True"


def test_a_deployment_names_its_revision_only_where_the_spec_alone_does_not_decide(world, try_out):
    """Else an immediate edit of a resource that has had trials would seem to be a loss."""
    made = promoted(world, try_out, "Immediate")
    assert revision_of(made) == made.status["effective"]["revision"]
    made.edit(pageSize=8)
    made.run(60)
    assert revision_of(made) is None
    before = made.status["configHash"]
    lose_all_but_the_config_hash(made)
    made.edit(pageSize=64)
    made.run(60)
    assert "StateLost" not in conditions(made)
    assert made.status["configHash"] != before


def revision_of(made):
    return made.children[STABLE]["metadata"]["annotations"].get(names.ANNOTATION_REVISION)


@pytest.mark.parametrize("policy", ["Immediate", "Guarded"])
def test_a_resource_restored_without_status_keeps_the_revision_that_serves(world, try_out, policy):
    made = promoted(world, try_out, policy)
    before, revision = set(made.engines), made.status["effective"]["revision"]
    lose_status(made)
    made.trials.clear()
    made.run(600)
    assert set(made.engines) == before
    assert "StateLost" not in conditions(made)
    assert made.status["effective"]["revision"] == revision
    assert "pageSize" in conditions(made)["SpecOverridden"]["message"]
    made.edit(pageSize=8)
    made.run(60)
    assert "SpecOverridden" not in conditions(made)


def test_a_rejected_spec_restored_without_status_does_not_get_in_force(rejected):
    before = set(rejected.engines)
    lose_status(rejected)
    rejected.run(600)
    assert set(rejected.engines) == before
    assert "StateLost" not in conditions(rejected)


def test_a_revision_deleted_while_the_operator_runs_is_written_again(rejected):
    before = dict(rejected.revisions)
    rejected.revisions.clear()
    rejected.run(60)
    assert rejected.revisions.keys() == {rejected.status["effective"]["revision"]}
    assert rejected.revisions.keys() <= before.keys()


def fields_of(status):
    """Paths of the fields of the status, and of the parts of `effective`."""
    return [(name,) for name in status] + [("effective", name) for name in status["effective"]]


def lose_field(made, path):
    *parts, last = path
    status = copy.deepcopy(made.status)
    found = status
    for part in parts:
        found = found[part]
    del found[last]
    made.resource = {**made.resource, "status": status}
    made.end_operator()


def test_a_rejected_spec_does_not_get_in_force_whatever_single_field_is_lost(rejected):
    before, hash_before = set(rejected.engines), rejected.status["configHash"]
    complete, paths = rejected.resource, fields_of(rejected.status)
    assert ("effective", "revision") in paths
    assert ("lastTrial",) in paths
    for path in paths:
        rejected.resource = complete
        lose_field(rejected, path)
        rejected.run(60)
        assert set(rejected.engines) == before, path
        assert rejected.status["configHash"] == hash_before, path


@pytest.mark.parametrize("policy", ["Immediate", "Guarded"])
def test_a_promotion_stays_in_force_whatever_single_field_is_lost(world, try_out, policy):
    made = promoted(world, try_out, policy)
    before, hash_before = set(made.engines), made.status["configHash"]
    complete, paths = made.resource, fields_of(made.status)
    assert ("effective", "overrides") in paths
    for path in paths:
        made.resource = complete
        lose_field(made, path)
        made.run(60)
        assert set(made.engines) == before, path
        assert made.status["configHash"] == hash_before, path
        assert "pageSize" in conditions(made)["SpecOverridden"]["message"], path


def test_a_rejected_spec_does_not_get_in_force_without_status_effective_and_revisions(rejected):
    before = set(rejected.engines)
    rejected.revisions.clear()
    lose_field(rejected, ("effective",))
    rejected.run(60)
    assert set(rejected.engines) == before
    assert conditions(rejected)["StateLost"]["status"] == "True"


def test_a_rejected_table_that_needs_no_restart_does_not_get_in_force_without_status(world):
    """Its config hash is that of the configuration in force, so the revision decides."""
    made = world()
    spec = made.resource["spec"]["speculation"]
    table = [{"from": 1, "candidateSteps": [1, 3, 5], "upHysteresis": 0.9}]
    made.edit(speculation=spec | {"adaptive": {"policy": "Goodput", "batchSizes": table}})
    assert made.run(60, until=lambda w: w.record.trial)
    made.command(made.record.trial.name, state="Aborted")
    assert made.run_to_end().verdict == "Aborted"
    boots = {engine.entries["1"].up_hysteresis for engine in made.engines.values()}
    lose_status(made)
    made.trials.clear()
    made.run(300)
    assert made._boot(made.status["configHash"]).speculation.table["1"].up_hysteresis in boots
    assert "speculation" in conditions(made)["SpecOverridden"]["message"]


def test_an_immediate_edit_is_no_loss_after_a_trial(world, try_out):
    """Trials leave revisions, and an edit that nothing guards is in force at once."""
    made = world(guarded=False)
    try_out(made)
    assert made.run(60, until=lambda w: w.record.trial)
    made.command("mine", state="Aborted")
    made.run(120)
    assert made.record.trial is None
    assert made.status["effective"]["reason"] == "FollowsSpec"
    made.edit(pageSize=32)
    made.reconcile()
    made.reconcile()
    assert made.status["effective"]["reason"] == "FollowsSpec"
    for lost in (lambda: None, made.revisions.clear):
        lost()
        made.end_operator()
        before = made.status["configHash"]
        made.edit(pageSize=made.resource["spec"]["pageSize"] * 2)
        made.run(60)
        assert "StateLost" not in conditions(made)
        assert "SpecOverridden" not in conditions(made)
        assert made.status["configHash"] != before


@pytest.mark.parametrize("policy", ["Immediate", "Guarded"])
def test_the_remedy_puts_the_spec_in_force(world, try_out, policy):
    made = promoted(world, try_out, policy)
    before = set(made.engines)
    lose_both(made)
    made.trials.clear()
    made.run(60)
    message = conditions(made)["StateLost"]["message"]
    name, value = message.rpartition(" ")[2].split("=")
    made.annotate(name, "of-another-configuration")
    made.run(60)
    assert set(made.engines) == before
    made.annotate(name, value)
    made.run(60)
    assert not set(made.engines) & before
    assert made.status["configHash"] == value
    assert "StateLost" not in conditions(made)


def test_a_lost_state_in_the_middle_of_a_trial_leaves_the_old_configuration(world):
    made = world(strategy="Canary")
    made.edit(pageSize=32)
    assert made.run(200, until=lambda w: len(w.engines) == 6)
    stable = {name for name in made.engines if name.startswith("chat-standalone-0")}
    lose_both(made)
    made.run(120)
    assert stable <= set(made.engines)
    assert conditions(made)["StateLost"]["status"] == "True"


def test_a_trial_whose_state_cannot_be_read_ends_and_another_one_begins(world):
    made = world(strategy="Canary")
    made.edit(pageSize=32)
    assert made.run(200, until=lambda w: len(w.engines) == 6)
    (name,) = made.trials
    made.trials[name]["status"]["state"] = {"phase": "Unheard"}
    made.run(60)
    status = made.trials[name]["status"]
    assert (status["verdict"], status["reason"]) == ("Superseded", "StateLost")
    assert "state" not in status
    assert made.record.trial.name != name


def test_a_promotion_is_carried_out_even_if_its_status_was_not_written(world, speculate):
    made = world()
    made.speeds = {3: 0.015}
    made.edit(speculation=speculate(3))
    assert made.run(until=lambda w: _phase(w) == "Promoting")
    made.resource = {**made.resource, "status": made.statuses[-2]}  # a conflict refused the last
    made.end_operator()
    made.run(60)
    assert made.record.history[0].verdict == "Promoted"
    assert made.status["effective"]["reason"] == "FollowsSpec"
    assert {made.num_steps(engine) for engine in made.engines.values()} == {3}


def _phase(made):
    trials = list(made.trials.values())
    return (trials[0].get("status") or {}).get("phase") if trials else None


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
    assert made.run(100, until=lambda w: 3 in {w.num_steps(each) for each in w.engines.values()})


def test_engines_return_to_their_table_while_the_operator_is_away(world, speculate):
    made = world()
    measuring(made, speculate)
    for _ in range(60):
        made.pass_time(10.0)
    assert {made.num_steps(engine) for engine in made.engines.values()} == {5}
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
    assert {made.num_steps(engine) for engine in made.engines.values()} == {5}
