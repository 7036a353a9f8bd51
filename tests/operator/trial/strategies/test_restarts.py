"""Switchback with restarts: the same pods run one configuration after the other, in blocks."""

import itertools

import pytest

from specdecode_api import names
from specdecode_operator.judge.evidence import Role
from specdecode_operator.trial.record.state import Restarts, Startup
from specdecode_operator.trial.strategies.block_pods import role_now
from specdecode_operator.trial.strategies.blocks import block_s, start_time_s

STABLE = ("Deployment", "chat-standalone")
LONG = {"maxDuration": "2h"}
OTHER_DRAFT = "pvc://models/other"


@pytest.fixture
def restarting(world):
    """A world whose pods take five seconds to start, which is measured, with an edit to try."""

    def make(gain=0.0, start_s=5.0, guard=None, edit=True, **options):
        made = world(guard=LONG | (guard or {}), **options)
        made.start_s = start_s
        for engine in list(made.engines):
            del made.engines[engine]
        made.reconcile()
        made.run(start_s + 20)
        made.reconcile()
        assert all(made.engines[name] in made._serving() for name in made.engines)
        made.old = made.status["configHash"]
        if edit:
            swap_draft(made, gain)
        return made

    return make


def swap_draft(made, gain=0.0):
    draft = {"draft": {"uri": OTHER_DRAFT}}
    made.edit(speculation=made.resource["spec"]["speculation"] | draft)
    assert made.run(60, until=lambda w: w.record.trial), made.status.get("effective")
    made.new = made.record.trial.target.arm.config_hash
    made.speeds = {made.new: 0.02 * (1.0 - gain), made.old: 0.02}


def end_of(made, step_s=15.0):
    assert made.record.trial is not None
    assert made.run(8000, step_s, until=lambda w: w.record.trial is None), made.status.get(
        "activeTrial"
    )
    return made.record.history[0]


def hashes(made):
    return {engine.arm.config_hash for engine in made.engines.values()}


def in_candidate_block(made):
    trial = made.record.trial
    return trial is not None and trial.period.placed_s is not None and hashes(made) == {made.new}


def conditions(made):
    return {each["type"]: each for each in made.status["conditions"]}


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_better_of_two_drafts_is_promoted_by_restarting_the_same_pods(restarting, replicas):
    made = restarting(gain=0.2, replicas=replicas)
    made.fewest_serving = replicas
    assert made.record.trial.kind == "Switchback"
    ended = end_of(made)
    assert (ended.status["strategy"], ended.verdict, ended.reason) == (
        "Switchback",
        "Promoted",
        "NotSlower",
    )
    made.run(60)
    assert hashes(made) == {made.new}
    assert len(made.engines) == replicas
    assert [each["metadata"]["name"] for each in made._deployments()] == ["chat-standalone"]
    assert made.status["effective"]["reason"] == "FollowsSpec"
    assert made.fewest_serving == replicas


def test_an_evicted_pod_does_not_keep_a_block_from_beginning(restarting):
    made = restarting(gain=0.2)
    made.evict(next(iter(made.engines)))
    assert end_of(made).verdict == "Promoted"
    made.run(60)
    assert conditions(made)["Degraded"]["status"] == "False"


def test_a_candidate_is_not_taken_for_accepted_if_all_state_is_lost_in_its_block(restarting):
    """The pods run the spec's configuration then, but nobody has accepted it."""
    made = restarting(gain=-0.3)
    made.run(3600, until=lambda w: w.record.trial and hashes(w) == {w.new})
    before = set(made.engines)
    made.revisions.clear()
    made.trials.clear()
    del made.resource["status"]
    made.end_operator()
    made.run(600)
    lost = conditions(made)["StateLost"]
    assert lost["status"] == "True"
    assert "a trial may have been trying" in lost["message"]
    assert set(made.engines) == before
    made.annotate(names.ANNOTATION_ACCEPT_SPEC, made.new)
    made.run(600)
    assert "StateLost" not in conditions(made)
    assert hashes(made) == {made.new}


def test_a_worse_draft_is_rolled_back_and_the_old_pods_return(restarting):
    made = restarting(gain=-0.3)
    ended = end_of(made)
    assert (ended.verdict, ended.reason) == ("RolledBack", "Slower")
    made.run(60)
    assert hashes(made) == {made.old}
    assert "tried and not taken" in made.status["effective"]["message"]
    template = made.children[STABLE]["spec"]["template"]["metadata"]["annotations"]
    assert names.ANNOTATION_BLOCK not in template


@pytest.mark.parametrize(
    "edited", [lambda made: {"pageSize": 32}, lambda made: _with_topk(made)], ids=["page", "topk"]
)
def test_page_size_and_topk_are_judged_by_restarts_too(restarting, edited):
    made = restarting(edit=False)
    made.edit(**edited(made))
    assert made.run(60, until=lambda w: w.record.trial), made.status.get("effective")
    assert made.record.trial.restarts is not None
    new = made.record.trial.target.arm.config_hash
    made.speeds = {new: 0.014, made.old: 0.02}
    assert end_of(made).verdict == "Promoted"


def _with_topk(made):
    spec = made.resource["spec"]["speculation"]
    changes = {"topk": 2, "numSteps": 3, "numDraftTokens": 8, "adaptive": {"policy": "Static"}}
    return {"speculation": spec | changes}


def test_every_block_has_new_pods_and_pairs_have_both_configurations(restarting):
    made = restarting()
    blocks: list[tuple[int, str, set[str], set[str]]] = []
    while made.record.trial is not None and len(blocks) < 8:
        made.pass_time(5)
        made.reconcile()
        trial = made.record.trial
        if (
            trial
            and trial.period.counted_s
            and (not blocks or blocks[-1][0] != trial.period.number)
        ):
            uids = {e.pod["metadata"]["uid"] for e in made.engines.values()}
            blocks.append((trial.period.number, role_now(trial), hashes(made), uids))
    assert [number for number, *_ in blocks] == list(range(8))
    for _, role, found, _ in blocks:
        assert found == {made.new if role == "candidate" else made.old}
    for one, other in itertools.pairwise(blocks):
        assert not one[3] & other[3]
    for first, second in zip(blocks[::2], blocks[1::2], strict=True):
        assert {first[1], second[1]} == {"baseline", "candidate"}


def test_a_block_lasts_at_least_ten_measured_starts(restarting):
    made = restarting(start_s=20.0, guard={"maxDuration": "6h"})
    trial = made.record.trial
    assert trial.restarts.startup == (20.0, 2 * 20.0)  # two pods, one after the other
    assert made.run(900, until=lambda w: w.record.trial.period.counted_s)
    counted_s = made.record.trial.period.counted_s
    number = made.record.trial.period.number
    assert made.run(2000, until=lambda w: w.record.trial.period.number != number)
    assert made.now_s - counted_s >= 10 * 20.0


def test_block_lengths_vary_and_have_a_least_length():
    found = [block_s(Restarts(Startup(30.0)), 7, pair, 120.0) for pair in range(200)]
    assert min(found) >= 300.0
    assert max(found) <= 450.0
    assert len(set(found)) == 200


def test_the_start_time_is_that_of_pods_that_did_not_flap():
    def pod(created, ready):
        status = {"type": "Ready", "status": "True", "lastTransitionTime": ready}
        return {
            "metadata": {"creationTimestamp": created},
            "status": {"conditions": [status]},
        }

    day = "2026-01-01T"
    slow, fast = (
        pod(f"{day}00:00:00Z", f"{day}00:01:10Z"),
        pod(f"{day}00:00:00Z", f"{day}00:00:50Z"),
    )
    flapped = pod(f"{day}00:00:00Z", f"{day}09:00:00Z")
    assert start_time_s([slow, fast, flapped], 1800.0) == 60.0
    assert start_time_s([], 1800.0) == 0.0


def test_too_short_a_duration_is_refused_with_the_numbers(restarting):
    made = restarting(guard={"maxDuration": "20m"}, start_s=30.0, edit=False)
    made.edit(pageSize=32)
    made.run(60)
    assert made.record.trial is None
    message = made.status["effective"]["message"]
    assert "Switchback needs at least 11 pairs × 2 × 6m10s" in message
    assert "(60s restart, 10s warmUp, 300s block) = 2h15m40s" in message
    assert "guard.maxDuration is 20m; raise it to 2h16m or more" in message
    assert hashes(made) == {made.old}


def test_a_trial_of_a_user_is_refused_with_the_numbers(restarting):
    made = restarting(start_s=30.0, edit=False, guarded=False)
    spec = {
        "deployment": "chat-standalone",
        "candidate": {"pageSize": 32},
        "strategy": "Switchback",
        "guard": {"maxDuration": "20m"},
    }
    made.create_trial({"metadata": {"name": "mine"}, "spec": spec})
    made.reconcile()
    made.reconcile()
    status = made.trials["mine"]["status"]
    assert (status["verdict"], status["reason"]) == ("Aborted", "StrategyNotPossible")
    assert "guard.maxDuration is 20m" in status["message"]


def test_pairs_that_no_longer_fit_end_the_trial(restarting):
    made = restarting(start_s=5.0, guard={"maxDuration": "1h"})
    made.start_s = 60.0
    ended = end_of(made)
    assert (ended.verdict, ended.reason) == ("Inconclusive", "TooLittleTime")
    assert "guard.maxDuration is 1h" in ended.message
    assert ended.status["measuredSeconds"] < 3600
    made.run(200)
    assert hashes(made) == {made.old}


@pytest.mark.parametrize("update", [{"type": "InPlace"}, {"maxUnavailable": 1, "maxSurge": 0}])
def test_auto_does_not_interrupt_the_only_pod(restarting, update):
    made = restarting(replicas=1, edit=False)
    made.edit(updateStrategy=update)
    made.run(30)
    made.edit(pageSize=32)
    made.run(60)
    assert made.record.trial is None
    assert "its trial would interrupt serving" in made.status["effective"]["message"]


def test_a_chosen_switchback_interrupts_the_only_pod(restarting):
    made = restarting(replicas=1, edit=False, strategy="Switchback")
    made.edit(updateStrategy={"type": "InPlace"})
    made.run(30)
    made.fewest_serving = 1
    made.old = made.status["configHash"]
    swap_draft(made, gain=0.2)
    assert end_of(made).verdict == "Promoted"
    assert made.fewest_serving == 0


def full_after_start(made):
    made.has_room = set()
    made.edit(updateStrategy={"surgeTimeout": "1m"})


def test_without_room_for_a_further_pod_auto_ends_the_trial_of_one_pod(restarting):
    made = restarting(replicas=1)
    full_after_start(made)
    ended = end_of(made)
    assert (ended.verdict, ended.reason) == ("Inconclusive", "NoRoom")
    assert "strategy Switchback, which interrupts serving" in ended.message
    assert len(made._serving()) == 1
    assert hashes(made) == {made.old}


def test_without_room_several_pods_restart_in_place(restarting):
    made = restarting(replicas=2)
    full_after_start(made)
    assert made.run(300, until=lambda w: w.record.trial.restarts.is_in_place)
    made.has_room = {names.ROLE_STABLE}
    limits = made.children[STABLE]["spec"]["strategy"]["rollingUpdate"]
    assert limits == {"maxSurge": 0, "maxUnavailable": 1}


def test_a_block_waits_for_a_nominated_node_for_half_an_hour_beyond_the_surge_timeout(restarting):
    made = restarting(replicas=2, edit=False)
    made.edit(lifecycle={"startupTimeout": "1h"})
    made.run(60)
    swap_draft(made)
    made.nominated = "node-2"
    full_after_start(made)

    def is_in_place(w):
        return w.record.trial is not None and w.record.trial.restarts.is_in_place

    assert not made.run(1800, step_s=10, until=is_in_place)
    assert "block 1: 0 of 2 pods serve" in made.record.trial.blocked_by
    assert made.run(200, step_s=10, until=is_in_place)


def unready(made, begun):
    """Reasons for which condition Ready was not true since the status number `begun`."""
    ready = [each for reported in made.statuses[begun:] for each in reported["conditions"]]
    found = [each for each in ready if each["type"] == "Ready" and each["status"] != "True"]
    return [(each["reason"], each["message"]) for each in found]


def test_ready_stays_true_while_pods_restart(restarting):
    made = restarting(start_s=15.0)
    begun = len(made.statuses)
    made.run(1100, step_s=10)
    assert made.record.trial is not None
    assert made.record.trial.period.number >= 3
    assert unready(made, begun) == []


def test_a_candidate_that_crashes_is_rolled_back_and_the_resource_stays_ready(restarting):
    made = restarting()
    made.cannot_start = {made.new}
    begun = len(made.statuses)
    ended = end_of(made)
    assert (ended.verdict, ended.reason) == ("RolledBack", "EngineCrashing")
    assert "vocabulary" in ended.message
    assert unready(made, begun) == []
    assert hashes(made) == {made.old}


def test_a_candidate_that_never_becomes_ready_is_rolled_back(restarting):
    made = restarting(edit=False)
    made.edit(lifecycle={"startupTimeout": "2m"})
    made.run(30)
    made.old = made.status["configHash"]
    swap_draft(made)
    made.start_s = 10_000.0
    ended = end_of(made)
    # Whichever block comes first does not become ready.
    assert ended.reason in ("CandidateNotReady", "BaselineNotReady")
    assert "lifecycle.startupTimeout (120 s)" in ended.message
    made.start_s = 5.0
    made.run(60)
    assert hashes(made) == {made.old}


def test_a_broken_draft_stops_within_a_hundred_requests(restarting):
    made = restarting(edit=False)
    made.run(300)
    made.accepts = {}
    swap_draft(made)
    made.accepts, made.speeds = {made.new: 1.02}, {made.new: 0.06, made.old: 0.02}
    ended = end_of(made)
    assert (ended.verdict, ended.reason) == ("RolledBack", "AcceptLengthFell")
    assert ended.status["candidate"]["requests"] <= 100


def test_a_broken_draft_stops_before_its_block_counts(restarting):
    """The first pod answers with it while the others restart, and all do during the warm-up."""
    made = restarting(edit=False, replicas=4, guard={"warmUp": "2m"})
    made.run(300)
    swap_draft(made)
    made.accepts, made.speeds = {made.new: 1.02}, {made.new: 0.06, made.old: 0.02}
    most = answered = 0.0

    def is_over(seen):
        nonlocal most, answered
        arms = [arm for engine in seen.engines.values() for arm in engine.counted.items()]
        answered = sum(each.answered_requests for arm, each in arms if arm.config_hash == seen.new)
        most = max(most, answered)
        trial = seen.record.trial
        assert trial is None or role_now(trial) is Role.BASELINE or trial.period.counted_s is None
        return trial is None

    assert made.run(3000, 5.0, until=is_over)
    ended = made.record.history[0]
    assert (ended.verdict, ended.reason) == ("RolledBack", "AcceptLengthFell")
    assert 4 <= ended.status["candidate"]["requests"] <= most <= 100
    made.run(120)
    assert hashes(made) == {made.old}


def test_a_pause_returns_to_the_configuration_in_force(restarting):
    made = restarting()
    assert made.run(2000, until=in_candidate_block)
    made.command(made.record.trial.name, state="Paused")
    made.run(60)
    assert hashes(made) == {made.old}
    pairs = len(made.record.trial.evidence.pairs)
    made.command(made.record.trial.name, state="Running")
    assert made.run(4000, until=lambda w: len(w.record.trial.evidence.pairs) > pairs)


def test_an_abort_in_a_candidates_block_returns_to_the_configuration_in_force(restarting):
    made = restarting()
    assert made.run(2000, until=in_candidate_block)
    made.command(made.record.trial.name, state="Aborted")
    ended = end_of(made)
    assert ended.verdict == "Aborted"
    made.run(30)
    assert hashes(made) == {made.old}


def test_an_edit_in_a_candidates_block_begins_its_own_trial_with_the_old_baseline(restarting):
    made = restarting()
    first = made.record.trial.target.id
    assert made.run(2000, until=in_candidate_block)
    made.edit(pageSize=8)
    assert made.run(400, until=lambda w: w.record.trial and w.record.trial.target.id != first)
    assert made.record.history[0].reason == "SpecChanged"
    assert made.record.trial.old.config_hash == made.old


def test_without_trials_the_configuration_in_force_returns(restarting):
    from dataclasses import replace

    made = restarting()
    assert made.run(2000, until=in_candidate_block)
    made.settings = replace(made.settings, has_trials=False)
    made.run(60)
    assert hashes(made) == {made.old}
    assert made.record.history[0].reason == "TrialsOff"


def test_an_operator_that_ends_after_any_step_changes_no_verdict(restarting):
    made = restarting(gain=0.25)
    steps = 0
    while made.record.trial is not None:
        made.pass_time(10)
        made.reconcile()
        steps += 1
        if steps % 97 == 0:
            made.end_operator()
        assert steps < 4000
    assert made.record.history[0].verdict in ("Promoted", "Inconclusive")
    made.run(60)
    wanted = made.new if made.record.history[0].verdict == "Promoted" else made.old
    assert hashes(made) == {wanted}


@pytest.mark.parametrize("after", range(0, 24, 3))
def test_a_new_process_continues_with_the_stored_pairs_and_the_same_order(restarting, after):
    made = restarting()
    made.run(after * 10.0 + 400, step_s=10)
    before = made.record.trial
    made.end_operator()
    made.reconcile()
    trial = made.record.trial
    assert trial.seed == before.seed
    assert trial.evidence.pairs == before.evidence.pairs
    assert trial.period.number == 2 * before.period.pair
    made.run(60)
    assert hashes(made) == {made.new if role_now(made.record.trial) == "candidate" else made.old}


def test_the_candidate_never_runs_before_the_trial_is_stored(restarting):
    made = restarting(edit=False)
    made.refuses_trials = True
    made.edit(pageSize=32)
    made.run(600)
    assert hashes(made) == {made.old}


def test_replicas_change_in_the_middle_of_a_block(restarting):
    made = restarting(replicas=2)
    assert made.run(2000, until=in_candidate_block)
    made.edit(replicas=4)
    made.run(30)
    assert len(made.engines) == 4
    assert made.record.trial is not None
    made.edit(replicas=0)
    made.run(100)
    assert made.engines == {}


def test_the_boot_file_of_the_configuration_in_force_stays_in_a_candidates_block(restarting):
    made = restarting()
    assert made.run(2000, until=in_candidate_block)
    made.run(100)
    assert ("ConfigMap", f"chat-standalone-{made.old}") in made.children


def test_an_image_of_a_candidate_does_not_become_the_default(restarting):
    made = restarting(edit=False, guarded=False)
    spec = {
        "deployment": "chat-standalone",
        "candidate": {"engine": {"image": "specdecode-engine:tried"}},
        "strategy": "Switchback",
    }
    made.create_trial({"metadata": {"name": "mine"}, "spec": spec})
    assert made.run(60, until=lambda w: w.record.trial)
    made.new = made.record.trial.target.arm.config_hash
    assert made.run(2000, until=in_candidate_block)
    assert made.record.trial.old.config_hash == made.old
    made.command("mine", state="Aborted")
    made.run(60)
    assert hashes(made) == {made.old}


def test_the_status_names_the_block_and_its_end(restarting):
    made = restarting()
    name = made.record.trial.name
    assert made.run(2000, until=in_candidate_block)
    assert made.run(200, until=lambda w: w.record.trial.period.counted_s)
    made.reconcile()
    block = made.trials[name]["status"]["block"]
    assert (block["pair"], block["arm"]) == (made.record.trial.period.pair, "Candidate")
    assert block["since"] < block["countedSince"] < block["nextChange"]
    made.command(made.record.trial.name, state="Aborted")
    made.run(60)
    assert "block" not in made.trials[name]["status"]


@pytest.mark.parametrize("ends_first", [False, True])
def test_another_configuration_in_force_ends_a_trial_in_its_block(restarting, try_out, ends_first):
    made = restarting(edit=False, guarded=False)
    other = {"speculation": {"draft": {"uri": OTHER_DRAFT}}}
    try_out(made, candidate=other, strategy="Switchback", explorationBudget="Exempt")
    assert made.run(60, until=lambda w: w.record.trial), made.trials["mine"].get("status")
    made.new = made.record.trial.target.arm.config_hash
    assert made.run(2000, until=in_candidate_block)
    if ends_first:
        made.command("mine", state="Aborted")
        made.reconcile()
        assert made.record.trial.phase == "RollingBack"
    made.edit(model=made.resource["spec"]["model"] | {"uri": "pvc://models/another"})
    assert made.run(200, until=lambda w: w.record.trial is None), made.record.trial.phase
    made.run(60)
    assert hashes(made) == {made.status["configHash"]}
    assert hashes(made).isdisjoint({made.old, made.new})
