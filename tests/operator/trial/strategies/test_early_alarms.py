"""Alarms and looks before anything counts: from the first pod of a candidate on that serves."""

import pytest

from specdecode_api import names
from specdecode_operator.judge.evidence import ArmEvidence, RequestSums, Stratum
from specdecode_operator.trial import next_look
from specdecode_operator.trial.record.state import Phase
from specdecode_operator.trial.strategies.context import role_of
from specdecode_operator.trial.strategies.early_alarms import EARLY_LOOK_S, comparable
from specdecode_operator.trial.strategies.guard import LOOK_S
from specdecode_operator.trial.strategies.looks import REST_LOOK_S

STEP_S = 2.5


@pytest.fixture
def canary(world):
    """A world in which a canary of another draft is about to start; its pods take a minute."""

    def make(replicas=2, warm_up="2m", **rollout):
        canary = {"replicas": replicas} | rollout.pop("canary", {})
        guard = {"warmUp": warm_up, "maxDuration": "2h"}
        made = world(strategy="Canary", canary=canary, guard=guard, **rollout)
        made.start_s, made.requests_per_s = 60.0, 6.0 * replicas
        draft = {"draft": {"uri": "pvc://models/other"}}
        made.edit(speculation=made.resource["spec"]["speculation"] | draft)
        assert made.run(60, STEP_S, until=lambda w: w.record.trial)
        made.new = made.record.trial.target.arm.config_hash
        return made

    return make


def served(made):
    """Requests that pods of the candidate have answered."""
    arms = [each for engine in made.engines.values() for each in engine.counted.items()]
    return sum(found.answered_requests for arm, found in arms if arm.config_hash == made.new)


def is_measured(made):
    return made.record.trial is None or made.record.trial.phase is Phase.MEASURING


@pytest.mark.parametrize("canaries", [{}, {"baseline": "Stable"}])
def test_a_broken_draft_on_pods_of_its_own_stops_before_its_warm_up_is_over(canary, canaries):
    made = canary(canary=canaries)
    made.accepts, made.speeds = {made.new: 1.02}, {made.new: 0.06}
    assert made.run(400, STEP_S, until=is_measured)
    ended = made.record.history[0]
    assert (ended.verdict, ended.reason) == ("RolledBack", "AcceptLengthFell")
    assert 4 <= ended.status["candidate"]["requests"] <= 100
    assert {role_of(engine.pod) for engine in made.engines.values()} == {names.ROLE_STABLE}
    evidence = ended.status["evidence"]
    assert (evidence["verdict"], evidence["reason"]) == ("RollBack", "AcceptLengthFell")


def test_a_canary_whose_requests_fail_stops_before_its_warm_up_is_over(canary):
    made = canary()
    made.fails = {made.new: 5}
    assert made.run(400, STEP_S, until=is_measured)
    ended = made.record.history[0]
    assert (ended.verdict, ended.reason) == ("RolledBack", "FailuresRail")


def test_what_is_answered_before_a_canary_is_measured_does_not_count(canary):
    made = canary(warm_up="1m")
    assert made.run(400, STEP_S, until=is_measured)
    trial = made.record.trial
    assert served(made) > 20
    assert trial.evidence.pods == ()
    roles = {engine.pod["metadata"]["uid"]: role_of(engine.pod) for engine in made.engines.values()}
    counted = {roles[uid] for uid in trial.ledgers}
    assert counted <= {names.ROLE_CANARY, names.ROLE_BASELINE}
    assert not any(ledger.cut()[1] for ledger in trial.ledgers.values())


def look(made, since_s=0.0):
    return next_look(made.observed, made.record, made.now_s, since_s)


def roles(found):
    return {role_of(pod) for pod in found.pods}


def test_looks_are_frequent_from_the_first_pod_of_the_candidate_on(canary):
    made = canary()
    assert look(made).due_s == LOOK_S
    assert roles(look(made)) == {names.ROLE_STABLE}
    assert made.run(200, STEP_S, until=lambda w: served(w) > 0)
    assert made.record.trial.phase in (Phase.PREPARING, Phase.WARMING_UP)
    assert look(made).due_s == EARLY_LOOK_S
    assert names.ROLE_CANARY in roles(look(made))
    assert made.run(300, STEP_S, until=lambda w: served(w) > 220)
    assert look(made).due_s <= LOOK_S
    assert look(made).due_s > EARLY_LOOK_S


def test_later_looks_at_separate_pods_are_at_ends_of_windows_and_once_a_minute(canary):
    made = canary(replicas=5)
    made.start_s = 5.0
    assert made.run(2000, STEP_S, until=lambda w: w.record.trial.window == 1)
    trial = made.record.trial
    assert look(made).due_s == REST_LOOK_S
    window_s = 7200.0 / 24
    made.now_s = trial.window_s + window_s - 20.0
    assert look(made).due_s == pytest.approx(20.0)
    made.now_s = trial.window_s + window_s + 1.0
    assert look(made).due_s == EARLY_LOOK_S
    assert look(made, since_s=10.0).due_s < 0.0


def test_what_pods_answer_before_their_block_counts_is_compared_in_equal_strata_only():
    sums = RequestSums(10.0, 1000.0, 300.0, 10.0)
    both, old, new = (Stratum(size, "greedy", "free", "short") for size in (4, 8, 16))
    pair = comparable(
        ArmEvidence(strata={both: sums, old: sums}, failed_requests=3.0),
        [ArmEvidence(strata={both: sums}), ArmEvidence(strata={both: sums, new: sums})],
    )
    assert pair.baseline.strata == {both: sums}
    assert pair.candidate.strata == {both: sums + sums}
    assert pair.baseline.failed_requests == 0.0


@pytest.mark.parametrize(("per_s", "is_recent"), [(8.0, True), (0.2, False)])
def test_the_baseline_of_the_first_block_is_what_was_answered_just_before(world, per_s, is_recent):
    """Content may have been another one for days; only a quiet resource falls back on those."""
    made = world(guard={"maxDuration": "2h"}, strategy="Switchback")
    made.accepts = {made.status["configHash"]: 4.5}
    made.run(600)
    made.accepts, made.requests_per_s = {}, per_s
    draft = {"draft": {"uri": "pvc://models/other"}}
    made.edit(speculation=made.resource["spec"]["speculation"] | draft)
    began_s = made.now_s
    assert made.run(200, STEP_S, until=lambda w: w.record.trial and w.record.trial.restarts.known)
    assert made.now_s - began_s <= 100.0
    known = made.record.trial.restarts.known
    accept = sum(row.tokens for row in known) / sum(row.steps for row in known)
    assert accept == pytest.approx(3.0 if is_recent else 4.5, rel=0.1)


def test_counting_before_the_first_block_has_an_end(world):
    made = world(guard={"maxDuration": "2h"}, strategy="Switchback")
    made.requests_per_s = 0.0
    draft = {"draft": {"uri": "pvc://models/other"}}
    made.edit(speculation=made.resource["spec"]["speculation"] | draft)
    began_s = made.now_s
    assert made.run(
        300,
        STEP_S,
        until=lambda w: w.record.trial and w.record.trial.phase is Phase.MEASURING,
    )
    assert made.now_s - began_s <= 100.0
