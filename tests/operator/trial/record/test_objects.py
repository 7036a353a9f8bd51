"""SpecDecodeTrials: those that the operator creates, those of users, and what they command."""

import pytest

from specdecode_api import names
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.settings import Settings
from specdecode_operator.trial.record.revisions import explaining, read_revision
from specdecode_operator.trial.record.stored import KEPT_TRIALS

SETTINGS = Settings(engine_image="specdecode-engine:test")


def status_of(made, name="mine"):
    return made.trials[name].get("status", {})


def finish(made, name="mine"):
    assert made.run(until=lambda w: status_of(w, name).get("phase") == "Ended"), status_of(
        made, name
    )
    return status_of(made, name)


def tuned(made):
    """The table that running engines take up from their boot file."""
    entries = made._boot(made.status["configHash"]).speculation.tuned
    return entries["1"].candidate_steps if entries else ()


def all_steps(made):
    return {made.num_steps(engine) for engine in made.engines.values()}


def test_a_guarded_edit_is_a_trial_object_with_its_verdict(world, speculate):
    made = world()
    made.speeds = {5: 0.02, 3: 0.03}
    made.edit(speculation=speculate(3))
    ended = made.run_to_end()
    made.reconcile()
    ((name, trial),) = made.trials.items()
    assert trial["spec"]["origin"] == "Edit"
    sizes = trial["spec"]["candidate"]["speculation"]["adaptive"]["batchSizes"]
    assert sizes == [{"from": 1, "candidateSteps": [3]}]
    (owner,) = trial["metadata"]["ownerReferences"]
    assert owner["uid"] == made.resource["metadata"]["uid"]
    status = status_of(made, name)
    assert (status["phase"], status["verdict"]) == ("Ended", "RolledBack")
    assert (ended.name, status["reason"]) == (name, ended.reason)
    assert "state" not in status
    assert status["evidence"]
    last = made.status["lastTrial"]
    assert (last["name"], last["verdict"]) == (name, "RolledBack")
    assert "activeTrial" not in made.status
    assert status["candidate"]["requests"] > 40


def test_a_trial_does_not_begin_before_its_object_exists(world, speculate):
    made = world(guard={"maxDuration": "30m"})
    made.speeds = {5: 0.02, 3: 0.03}
    made.edit(speculation=speculate(3))
    made.reconcile()
    created = dict(made.trials)
    made.trials.clear()
    made._write_objects = lambda objects: None  # a quota refuses to create it
    assert not made.run(300, until=lambda w: w.record.trial.period.number > 0)
    assert "waits for the creation of SpecDecodeTrial" in made.record.trial.blocked_by
    assert all_steps(made) == {5}
    del made._write_objects
    made.trials |= created
    assert made.run(until=lambda w: w.record.trial is None)
    assert made.record.history[0].verdict == "RolledBack"


def test_the_trial_of_a_user_reports_and_waits_to_be_promoted(world, try_out):
    made = world()
    made.speeds = {5: 0.02, 3: 0.015}
    try_out(made)
    status = finish(made)
    assert (status["verdict"], status["strategy"]) == ("Passed", "Hot")
    assert float(status["interval"]["gain"].rstrip("%")) > 10
    assert all_steps(made) == {5}
    made.command("mine", promote=True)
    assert made.run(120, until=lambda w: tuned(w) == (3,))
    assert status_of(made)["verdict"] == "Promoted"
    assert made.status["effective"]["reason"] == "Promoted"
    assert made.record.trial is None


def test_a_trial_that_promotes_puts_its_candidate_in_force(world, try_out):
    made = world()
    made.speeds = {5: 0.02, 3: 0.015}
    try_out(made, onSuccess="Promote")
    assert finish(made)["verdict"] == "Promoted"
    assert all_steps(made) == {3}


@pytest.mark.parametrize("guarded", [True, False])
def test_a_promoted_configuration_stays_until_the_spec_is_edited(guarded, world, try_out):
    made = world(guarded=guarded)
    try_out(made, candidate={"pageSize": 32}, promote=True)
    before = made.status["configHash"]
    status = finish(made)
    assert (status["verdict"], status["reason"]) == ("Promoted", "PromotedByHand")
    assert made.run(60, until=lambda w: w.status["configHash"] != before)
    promoted = made.status["configHash"]
    assert made.status["effective"]["reason"] == "Promoted"
    made.edit(replicas=3)
    made.end_operator()
    made.run(60)
    assert made.status["configHash"] == promoted
    assert len(made.engines) == 3
    made.edit(pageSize=8)
    made.run(30)
    assert made.record.overrides == ()
    now = (made.status.get("effective") or made.status)["configHash"]
    assert (now == promoted) is guarded
    assert (made.record.trial is not None) is guarded


def test_a_worse_candidate_is_rolled_back(world, try_out):
    made = world()
    made.speeds = {5: 0.02, 3: 0.03}
    try_out(made)
    status = finish(made)
    assert status["verdict"] == "RolledBack"
    assert all_steps(made) == {5}
    made.run(120)
    assert made.record.trial is None


def test_a_trial_is_paused_resumed_and_aborted(world, try_out):
    made = world()
    try_out(made)
    assert made.run(300, until=lambda w: status_of(w).get("phase") == "Measuring")
    assert made.status["activeTrial"] == "mine"
    made.command("mine", state="Paused")
    assert made.run(60, until=lambda w: status_of(w)["phase"] == "Paused")
    assert made.run(60, until=lambda w: all_steps(w) == {5})
    made.command("mine", state="Running")
    assert made.run(60, until=lambda w: status_of(w)["phase"] == "Measuring")
    made.command("mine", state="Aborted")
    status = finish(made)
    assert (status["verdict"], status["reason"]) == ("Aborted", "AbortedByHand")
    assert all_steps(made) == {5}


def test_a_trial_deleted_while_it_runs_leaves_the_configuration_in_force(world, try_out):
    made = world()
    try_out(made)
    assert made.run(300, until=lambda w: status_of(w).get("phase") == "Measuring")
    del made.trials["mine"]
    assert made.run(120, until=lambda w: w.record.trial is None)
    assert made.record.history[0].reason == "TrialDeleted"
    assert all_steps(made) == {5}


@pytest.mark.parametrize(
    ("candidate", "spec", "reason", "message"),
    [
        ({"pageSize": 16}, {}, "InvalidCandidate", "changes nothing of the configuration"),
        ({"speculation": {"topk": 99}}, {}, "InvalidCandidate", "topk"),
        ({"speculation": {"topK": 2}}, {}, "InvalidCandidate", "topK"),
        ({"pageSize": 32}, {"strategy": "Hot"}, "StrategyNotPossible", "Hot"),
        ({"pageSize": 32}, {"state": "Aborted"}, "AbortedByHand", "before it began"),
    ],
)
def test_what_cannot_be_tried_ends_with_its_reason(
    candidate, spec, reason, message, world, try_out
):
    made = world()
    try_out(made, candidate=candidate, **spec)
    made.run(30)
    status = status_of(made)
    assert (status["phase"], status["verdict"], status["reason"]) == ("Ended", "Aborted", reason)
    assert message in status["message"]
    assert made.record.trial is None


def test_trials_wait_for_each_other_and_users_go_first(world, speculate, try_out):
    made = world()
    try_out(made, "first")
    try_out(made, "second", candidate={"speculation": {"adaptive": speculate(1)["adaptive"]}})
    made.edit(speculation=speculate(1, 3))
    made.run(30)
    assert made.record.trial.name == "first"
    assert status_of(made, "second")["phase"] == "Pending"
    assert status_of(made, "second")["message"] == "waits for the end of trial first"
    finish(made, "first")
    assert made.run(60, until=lambda w: w.record.trial and w.record.trial.name == "second")


def test_a_paused_trial_waits_until_it_is_resumed(world, try_out):
    made = world()
    try_out(made, state="Paused")
    made.run(60)
    assert (made.record.trial, status_of(made)["phase"]) == (None, "Paused")
    made.command("mine", state="Running")
    assert made.run(60, until=lambda w: w.record.trial is not None)


def test_the_guard_of_a_trial_differs_from_the_deployments(world, try_out):
    made = world()
    made.speeds = {5: 0.02, 3: 0.015}
    try_out(made, guard={"minRequests": 100_000, "maxDuration": "3m"})
    assert finish(made)["verdict"] == "Inconclusive"


def test_a_user_promotes_an_edit_that_was_rolled_back(world, speculate):
    made = world()
    made.speeds = {5: 0.02, 3: 0.03}
    made.edit(speculation=speculate(3))
    made.run_to_end()
    made.reconcile()
    (name,) = made.trials
    made.command(name, promote=True)
    assert made.run(120, until=lambda w: tuned(w) == (3,))
    assert made.status["effective"]["reason"] == "FollowsSpec"


def test_old_trials_are_deleted(world, try_out):
    made = world()
    for number in range(KEPT_TRIALS + 3):
        try_out(made, f"bad-{number:02}", candidate={"pageSize": 16})
        made.run(20)
    made.run(20)
    assert len(made.trials) == KEPT_TRIALS
    assert f"bad-{KEPT_TRIALS + 2:02}" in made.trials


def test_every_accepted_configuration_is_a_revision(world, try_out):
    made = world()
    first = made.status["effective"]["revision"]
    assert list(made.revisions) == [first]
    try_out(made, candidate={"pageSize": 32}, promote=True)
    made.run(60)
    second = made.status["effective"]["revision"]
    assert list(made.revisions) == [first, second]
    held = read_revision(made.revisions[second])
    assert (held.spec["pageSize"], held.number) == (32, 2)
    assert held.spec["engine"]["image"] == SETTINGS.engine_image
    assert explaining(made.status["configHash"], [held]) == held
    try_out(made, "back", candidate={"pageSize": 16}, promote=True)
    made.run(60)
    assert made.status["effective"]["revision"] == first
    assert read_revision(made.revisions[first]).number == 3
    writes = dict(made.revisions)
    made.run(60)
    assert made.revisions == writes


def test_the_table_of_a_promoted_trial_is_in_its_revision(world, try_out):
    made = world()
    made.speeds = {5: 0.02, 3: 0.015}
    try_out(made, onSuccess="Promote")
    finish(made)
    made.run(30)
    held = read_revision(made.revisions[made.status["effective"]["revision"]])
    assert held.table["1"].candidate_steps == (3,)


def test_an_orphan_of_the_operator_ends(world, try_out):
    made = world()
    try_out(made, origin="Edit")
    made.reconcile()
    made.reconcile()
    status = status_of(made)
    assert (status["verdict"], status["reason"]) == ("Superseded", "StateLost")
    assert made.trials["mine"]["metadata"]["labels"] == {names.LABEL_DEPLOYMENT: "chat-standalone"}


def overridden_fields(made):
    message = next(
        (each["message"] for each in made.status["conditions"] if each["type"] == "SpecOverridden"),
        "",
    )
    return message.partition("in place of ")[2].partition(" (")[0]


@pytest.mark.parametrize("guarded", [True, False])
def test_an_edit_of_a_promoted_field_ends_the_override_of_that_field_only(guarded, world, try_out):
    made = world(guarded=guarded)
    scheduler = {"scheduler": {"maxRunningRequests": 32}}
    try_out(made, candidate={"pageSize": 32, "engine": scheduler}, promote=True)
    made.run(60)
    assert overridden_fields(made) == "engine.scheduler.maxRunningRequests, pageSize"
    assert "kubectl specdecode adopt chat-standalone" in made.status["effective"]["message"]
    made.edit(pageSize=8)
    made.end_operator()
    made.run(30)
    assert overridden_fields(made) == "engine.scheduler.maxRunningRequests"
    if guarded:
        assert made.record.trial.target.spec["engine"]["scheduler"] == scheduler["scheduler"]
    else:
        held = read_revision(made.revisions[made.status["effective"]["revision"]])
        assert (held.spec["pageSize"], held.spec["engine"]["scheduler"]) == (
            8,
            scheduler["scheduler"],
        )


def test_a_promoted_table_overrides_the_specs(world, try_out):
    made = world()
    made.speeds = {5: 0.02, 3: 0.015}
    try_out(made, onSuccess="Promote")
    finish(made)
    made.run(30)
    assert overridden_fields(made) == "speculation.adaptive.batchSizes"


def test_parts_of_an_edit_that_no_candidate_can_contain_are_in_force_at_once(world):
    made = world()
    before = made.status["configHash"]
    made.edit(pageSize=32, lifecycle={"startupTimeout": "1m"})
    made.reconcile()
    message = made.status["effective"]["message"]
    assert message.startswith("the edit of lifecycle is in force without a trial")
    assert made.run(60, until=lambda w: w.record.trial)
    assert made.status["configHash"] != before
    assert made.record.accepted["lifecycle"]["startupTimeout"] == "1m"
    assert made.record.accepted["pageSize"] == 16
    ((_, trial),) = made.trials.items()
    assert trial["spec"]["candidate"] == {"pageSize": 32}


def test_another_number_of_ranks_is_in_force_without_a_trial(world):
    """It changes texts by rounding, and the GPUs of a pod: a trial could not compare the two."""
    made = world()
    before = made.status["configHash"]
    made.edit(parallelism={"tensor": 2})
    made.reconcile()
    message = made.status["effective"]["message"]
    assert message.startswith("the edit of parallelism is in force without a trial")
    made.run(60)
    assert (made.record.trial, made.trials) == (None, {})
    assert made.record.accepted["parallelism"] == {"tensor": 2}
    assert made.status["configHash"] != before
    assert {engine.runs for engine in made.engines.values()} == {made.status["configHash"]}


def test_an_edit_is_in_force_as_a_whole_where_its_parts_are_not_valid_alone(world):
    made = world()
    frozen = {"algorithm": "FROZEN_KV_MTP", "draft": {"uri": "pvc://models/assistant"}}
    made.edit(model={"uri": "pvc://models/other"}, speculation=frozen)
    made.run(60)
    assert made.record.accepted["speculation"] == frozen
    made.edit(parallelism={"tensor": 2}, speculation={"algorithm": "NGRAM"})
    made.run(60)
    assert made.trials == {}
    assert made.record.accepted["parallelism"] == {"tensor": 2}
    assert made.record.accepted["speculation"] == {"algorithm": "NGRAM"}
    message = made.status["effective"]["message"]
    assert message.startswith("the edit of parallelism is in force without a trial")


def test_another_model_is_in_force_at_once_with_the_whole_edit(world):
    made = world()
    made.edit(pageSize=32, model={"uri": "pvc://models/other"})
    made.run(60)
    assert made.record.trial is None
    assert made.trials == {}
    assert made.record.accepted["pageSize"] == 32
    assert "the edit of model is in force" in made.status["effective"]["message"]


def test_a_running_trial_is_counted_in_the_metrics(world, try_out):
    made = world()
    metrics = Metrics("test")
    metrics.watch_resources(lambda: [made.resource])

    def running():
        return metrics.registry.get_sample_value("specdecode_operator_trials_running")

    assert running() == 0
    try_out(made)
    made.run(60)
    assert running() == 1


def test_a_trial_begins_only_after_the_api_server_has_accepted_its_candidate(world, try_out):
    made = world(guarded=False)
    made.invalid = 'admission webhook "images.example" denied the request: no such image'
    try_out(made)
    decided = made.reconcile()
    wanted = decided.step.dry_run
    assert made.record.trial is None
    assert "verdict" not in made.trials["mine"].get("status", {})
    assert wanted.manifest["kind"] == names.KIND
    assert wanted.manifest["metadata"]["name"] != "chat-standalone"
    assert wanted.manifest["spec"]["speculation"]["adaptive"]["batchSizes"][0] == {
        "from": 1,
        "candidateSteps": [3],
    }
    made.reconcile()
    status = made.trials["mine"]["status"]
    assert (status["verdict"], status["reason"]) == ("Aborted", "InvalidCandidate")
    assert "images.example" in status["message"]
    made.invalid = ""
    try_out(made, name="again")
    made.run(20)
    assert made.status["activeTrial"] == "again"


@pytest.mark.parametrize("guarded", [True, False])
def test_an_edit_that_contradicts_a_promotion_ends_it(guarded, world, try_out):
    made = world(guarded=guarded)
    try_out(made, candidate={"speculation": {"topk": 2}}, promote=True)
    finish(made)
    made.run(30)
    assert made.status["effective"]["reason"] == "Promoted"
    made.edit(speculation={"algorithm": "NONE"})  # which does not draft, so it has no topk
    made.run(60)
    assert made.status["effective"]["reason"] == ("Guarded" if guarded else "FollowsSpec")
    if not guarded:
        assert made._boot(made.status["configHash"]).speculation.algorithm == "NONE"
