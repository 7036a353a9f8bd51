"""Edits of a guarded spec: compared with what serves, and then in force or not."""

import copy

import pytest

from specdecode_api import names


def test_the_first_configuration_is_accepted_without_a_trial(world):
    made = world()
    assert made.record.trial is None
    assert made.record.accepted is not None
    assert made.status["effective"]["reason"] == "FollowsSpec"


def test_a_worse_table_is_tried_in_place_and_rolled_back(world, speculate):
    made = world()
    before = {name: engine.arm for name, engine in made.engines.items()}
    made.speeds = {5: 0.02, 3: 0.03}
    made.edit(speculation=speculate(3))
    ended = made.run_to_end()
    assert (ended.status["strategy"], ended.verdict) == ("Hot", "RolledBack")
    assert {name: engine.arm for name, engine in made.engines.items()} == before
    effective = made.status["effective"]
    assert effective["reason"] == "Guarded"
    assert ended.id in effective["message"]


def test_a_table_that_costs_nothing_is_promoted_without_a_restart(world, speculate):
    made = world()
    pods = set(made.engines)
    made.speeds = {5: 0.02, 3: 0.015}
    made.edit(speculation=speculate(3))
    ended = made.run_to_end()
    assert (ended.status["strategy"], ended.verdict, ended.reason) == (
        "Hot",
        "Promoted",
        "NotSlower",
    )
    assert set(made.engines) == pods
    assert {made.num_steps(engine) for engine in made.engines.values()} == {3}
    assert made.status["effective"]["reason"] == "FollowsSpec"
    assert made.status["configHash"] == made.status["effective"]["configHash"]


def test_a_promoted_table_is_in_the_boot_file_that_the_pods_mount(world, speculate):
    made = world()
    made.speeds = {5: 0.02, 3: 0.015}
    made.edit(speculation=speculate(3))
    made.run_to_end()
    boot = made._boot(made.status["configHash"])
    assert boot.speculation.tuned["1"].candidate_steps == (3,)
    assert boot.speculation.table["1"].candidate_steps == (1, 3, 5)


def test_one_replica_takes_turns(world, speculate):
    made = world(replicas=1)
    made.speeds = {5: 0.02, 3: 0.03}
    made.edit(speculation=speculate(3))
    ended = made.run_to_end()
    assert (ended.status["strategy"], ended.verdict) == ("Switchback", "RolledBack")
    assert {made.num_steps(engine) for engine in made.engines.values()} == {5}


def test_an_edit_is_tried_while_the_only_pod_is_replaced_after_an_eviction(world, speculate):
    made = world(replicas=1)
    made.start_s = 60.0
    made.evict(next(iter(made.engines)))
    made.reconcile()
    made.edit(speculation=speculate(3))
    made.reconcile()
    assert made.record.trial is not None


def test_a_slow_pod_does_not_decide(world, speculate):
    made = world()
    next(iter(made.engines.values())).slowness = 1.3
    made.edit(speculation=speculate(3))
    ended = made.run_to_end()
    assert ended.verdict in ("Promoted", "Inconclusive")
    assert all(ended.status[role]["requests"] > 20 for role in ("baseline", "candidate"))


def test_a_table_beyond_what_is_prepared_needs_pods_of_its_own(world, speculate):
    made = world(canary={"replicas": 5})
    old = made.status["configHash"]
    made.edit(speculation=speculate(1, 7))
    assert made.run(60, until=lambda w: w.record.trial)
    assert made.record.trial.kind == "Canary"
    made.run(60)
    roles = [engine.pod["metadata"]["labels"][names.LABEL_ROLE] for engine in made.engines.values()]
    assert sorted(roles) == ["baseline"] * 5 + ["canary"] * 5 + ["stable"] * 2
    assert made.status["configHash"] == old
    assert made.trials[made.status["activeTrial"]]["status"]["strategy"] == "Canary"


def test_a_canary_that_is_as_good_is_promoted_by_a_rolling_update(world):
    made = world(canary={"replicas": 5})
    old = made.status["configHash"]
    made.edit(pageSize=32)
    new = None
    assert made.run(60, until=lambda w: w.record.trial)
    new = made.record.trial.target.arm.config_hash
    made.speeds = {new: 0.015}
    ended = made.run_to_end()
    assert (ended.status["strategy"], ended.verdict) == ("Canary", "Promoted")
    assert made.status["configHash"] == new != old
    made.run(60)
    assert {engine.arm.config_hash for engine in made.engines.values()} == {new}
    assert sorted(each["metadata"]["name"] for each in made._deployments()) == ["chat-standalone"]
    assert made.status["effective"]["reason"] == "FollowsSpec"


def test_a_slower_canary_goes_and_the_spec_stays_rejected(world):
    made = world(canary={"replicas": 5})
    old = made.status["configHash"]
    made.edit(pageSize=32)
    assert made.run(60, until=lambda w: w.record.trial)
    made.speeds = {made.record.trial.target.arm.config_hash: 0.03}
    ended = made.run_to_end()
    assert (ended.verdict, ended.reason) == ("RolledBack", "Slower")
    made.run(600)
    assert made.record.trial is None
    assert len(made.record.history) == 1
    assert {engine.arm.config_hash for engine in made.engines.values()} == {old}
    assert "tried and not taken" in made.status["effective"]["message"]
    made.edit(pageSize=8)
    assert made.run(60, until=lambda w: w.record.trial)


def test_a_canary_of_fewer_than_five_pods_decides_nothing(world):
    made = world(strategy="Canary")
    made.edit(pageSize=32)
    ended = made.run_to_end()
    assert (ended.verdict, ended.reason) == ("Inconclusive", "TooFewPods")
    assert "2 of 5 pods" in ended.message


def test_a_broken_draft_is_caught_by_its_accept_length(world):
    made = world(strategy="Canary")
    made.edit(
        speculation=made.resource["spec"]["speculation"] | {"draft": {"uri": "pvc://models/other"}}
    )
    assert made.run(60, until=lambda w: w.record.trial)
    broken = made.record.trial.target.arm.config_hash
    made.accepts = {broken: 1.02}
    made.speeds = {broken: 0.05}
    ended = made.run_to_end()
    assert (ended.verdict, ended.reason) == ("RolledBack", "AcceptLengthFell")
    assert ended.status["candidate"]["requests"] <= 100


def test_a_draft_is_tried_on_pods_of_its_own_and_exchanged_in_the_others(world):
    made = world(canary={"replicas": 5})
    pods = set(made.engines)
    draft = {"draft": {"uri": "pvc://models/other"}}
    made.edit(speculation=made.resource["spec"]["speculation"] | draft)
    assert made.run(60, until=lambda w: w.record.trial)
    new = made.record.trial.target.arm.config_hash
    assert new not in {made.engines[name].runs for name in pods}
    made.speeds = {new: 0.015}
    ended = made.run_to_end()
    assert (ended.status["strategy"], ended.verdict) == ("Canary", "Promoted")
    made.run(60)
    assert set(made.engines) == pods
    assert {engine.runs for engine in made.engines.values()} == {new}
    assert made.status["draftExchange"]["state"] == "Exchanged"


def test_a_canary_that_does_not_start_is_rolled_back(world):
    made = world(strategy="Canary")
    made.edit(pageSize=32)
    from specdecode_operator import owned
    from specdecode_operator.objects.resource import parse

    new = owned.build(parse(made.resource), "specdecode-engine:test").config_hash
    made.cannot_start = {new}
    ended = made.run_to_end()
    assert (ended.verdict, ended.reason) == ("RolledBack", "EngineCrashing")
    assert "vocabulary" in ended.message


def test_without_room_for_a_canary_the_old_stays(world):
    made = world(strategy="Canary")
    made.has_room = {names.ROLE_STABLE}
    made.edit(pageSize=32, lifecycle={"startupTimeout": "1m"})
    ended = made.run_to_end()
    assert (ended.verdict, ended.reason) == ("Inconclusive", "CanaryNotReady")
    assert len(made.engines) == 2


def test_without_room_for_fresh_pods_the_stable_ones_are_compared_with(world):
    made = world(strategy="Canary")
    made.has_room = {names.ROLE_STABLE, names.ROLE_CANARY}
    made.edit(pageSize=32)
    ended = made.run_to_end()
    assert ended.status["strategy"] == "Canary"
    assert all(ended.status[role]["requests"] > 0 for role in ("baseline", "candidate"))


def test_an_edit_in_mid_run_ends_the_trial_and_begins_its_own(world, speculate):
    made = world()
    made.edit(speculation=speculate(3))
    made.run(100)
    first = made.record.trial.target.id
    made.edit(speculation=speculate(1))
    assert made.run(200, until=lambda w: w.record.trial and w.record.trial.target.id != first)
    assert [each.verdict for each in made.record.history] == ["Superseded"]
    assert made.record.history[0].reason == "SpecChanged"


def test_a_reverted_edit_needs_no_trial(world, speculate):
    made = world(canary={"replicas": 5})
    accepted = made.resource["spec"]["speculation"]
    made.edit(pageSize=32)
    made.run(100)
    assert made.record.trial.kind == "Canary"
    made.edit(pageSize=16, speculation=accepted)
    made.run(60)
    assert made.record.trial is None
    assert made.record.history[0].reason == "Reverted"
    assert len(made.engines) == 2
    assert made.status["effective"]["reason"] == "FollowsSpec"


def test_replicas_change_at_once_in_the_middle_of_a_trial(world, speculate):
    made = world()
    made.edit(speculation=speculate(3))
    made.run(100)
    made.edit(replicas=4)
    made.run(30)
    assert len(made.engines) == 4
    assert made.record.trial is not None
    made.run(120)
    assert len(made.record.trial.pods if made.record.trial else range(4)) == 4


def test_an_unguarded_edit_counts_at_once(world):
    made = world(guarded=False)
    made.edit(pageSize=32)
    made.reconcile()
    assert made.record.trial is None
    made.reconcile()
    assert {engine.arm.config_hash for engine in made.engines.values()} == {
        made.status["configHash"]
    }


def test_an_engine_that_would_need_a_restart_gets_new_pods(world, speculate):
    made = world()
    made.refuses = "candidate_steps [3] are not among the prepared ones"
    made.edit(speculation=speculate(3))
    assert made.run(200, until=lambda w: w.record.trial and w.record.trial.restarts)
    assert made.record.history[0].reason == "NeedsRestart"


def test_silent_pods_hold_a_trial_until_its_time_is_over(world, speculate):
    made = world()
    made.is_silent = True
    made.edit(speculation=speculate(3))
    made.run(300)
    kinds = {each["type"]: each for each in made.status["conditions"]}
    assert kinds["CanaryHealthy"]["status"] == "Unknown"
    ended = made.run_to_end()
    assert ended.verdict == "Inconclusive"


def test_a_pod_that_was_started_anew_gets_its_table_again(world, speculate):
    made = world()
    made.edit(speculation=speculate(3))
    assert made.run(200, until=lambda w: 3 in {w.num_steps(e) for e in w.engines.values()})
    engine = next(e for e in made.engines.values() if made.num_steps(e) == 3)
    made.restart(engine)
    assert made.num_steps(engine) == 5
    made.run(4, step_s=2)
    assert sorted(made.num_steps(e) for e in made.engines.values()) == [3, 5]


def test_a_repair_of_what_does_not_start_is_not_tried(world):
    made = world()
    made.cannot_start = {made.status["configHash"]}
    made.engines.clear()
    made.reconcile()
    made.edit(pageSize=32)
    made.run(60)
    assert made.record.trial is None
    assert made.status["effective"]["reason"] == "FollowsSpec"


def test_where_clients_need_a_key_an_edit_is_tried_in_place_all_the_same(world, speculate):
    keys = {"apiKeys": {"secretName": "keys"}}
    made = world(serving=keys)
    made.edit(speculation=speculate(3))
    assert made.run(60, until=lambda w: w.record.trial)
    assert made.record.trial.kind == "Hot"


def test_an_edit_of_a_resource_without_speculation_is_tried(world):
    made = world(canary={"replicas": 5})
    made.edit(speculation={"algorithm": "NONE"})
    made.engines.clear()
    plain = copy.deepcopy(made.resource)
    made.__init__(plain)
    made.reconcile()
    made.run(60)
    made.edit(pageSize=32)
    assert made.run(60, until=lambda w: w.record.trial)
    assert made.record.trial.old_table == {}
    assert made.run_to_end().reason in ("TooFewRequests", "NotSlower")


def test_pods_of_a_canary_go_when_nobody_is_to_be_served(world):
    made = world(replicas=6, canary={"replicas": 5})
    made.edit(pageSize=32)
    assert made.run(200, until=lambda w: w.record.trial and w.record.trial.phase == "Measuring")
    made.edit(replicas=0)
    made.run(30)
    assert made.engines == {}
    ended = made.record.history[0]
    assert (ended.verdict, ended.reason) == ("Superseded", "NoReplicas")
    assert made.record.trial is None
    assert made.status["effective"]["reason"] == "FollowsSpec"


@pytest.mark.parametrize("repair", [False, True])
def test_a_promoted_canary_that_does_not_start_elsewhere_does_not_stay(repair, world):
    made = world(canary={"replicas": 5})
    made.edit(pageSize=32)
    assert made.run(60, until=lambda w: w.record.trial)
    trial = made.record.trial
    made.run(30)
    made.cannot_start.add(trial.target.arm.config_hash)
    made.command(trial.name, promote=True)
    assert made.run(60, until=lambda w: w.record.trial.phase == "Promoting")
    if repair:
        made.edit(model=made.resource["spec"]["model"] | {"uri": "pvc://models/another"})
        rollout = made.resource["spec"]["rollout"] | {"editPolicy": "Immediate"}
        made.edit(rollout=rollout)
    patience_s = 100 if repair else 2000
    assert made.run(patience_s, until=lambda w: w.record.trial is None), made.record.trial.phase
    made.run(30)
    assert [each["metadata"]["name"] for each in made._deployments()] == ["chat-standalone"]
    assert made.record.history[0].verdict == "Promoted"
