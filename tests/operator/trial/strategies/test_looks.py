"""Looks at block borders, at participants only; state is stored at ends of pairs and phases."""

from specdecode_operator.judge.turns import PROBE_PAIRS, turn_stretch
from specdecode_operator.trial import next_look


def in_turns(made, speculate):
    made.edit(speculation=speculate(3))
    assert made.run(
        300,
        step_s=1,
        until=lambda w: w.record.trial and len(w.record.trial.evidence.pairs) >= PROBE_PAIRS,
    )
    return made.record.trial


def look(made, since_s=1.0):
    return next_look(made.observed, made.record, made.now_s, since_s)


def test_looks_fall_on_the_borders_of_a_turn_once_a_pair_is_complete(world, speculate):
    made = world()
    in_turns(made, speculate)
    assert made.run(60, step_s=1, until=lambda w: w.record.trial.period.counted_s)
    trial = made.record.trial
    border_s = trial.period.counted_s + 20 * turn_stretch(trial.seed, trial.period.pair)
    assert look(made).due_s == border_s - made.now_s
    assert look(made, since_s=100.0).due_s == border_s - made.now_s


def test_a_trial_in_turns_looks_at_its_participants_only(world, speculate):
    made = world(replicas=11)
    in_turns(made, speculate)
    trial = made.record.trial
    assert len(trial.pods) == 8
    assert {pod["metadata"]["uid"] for pod in look(made).pods} == set(trial.pods)
    assert look(made).tables.keys() == set(trial.pods)


def test_state_is_stored_at_ends_of_pairs_and_phases_only(world, speculate):
    made = world()
    made.speeds = {3: 0.03}
    made.edit(speculation=speculate(3))
    stored = []
    for _ in range(600):
        made.pass_time(1.0)
        decided = made.reconcile()
        stored += [new["state"] for _, new in decided.objects.statuses if "state" in new]
        if stored and made.record.trial is None:
            break
    pairs = made.record.history[0].status["measuredSeconds"] // 40
    assert 0 < len(stored) <= pairs + 4  # begin, first turn, verdict, end


def test_a_paused_trial_runs_the_table_in_force_everywhere(world, speculate):
    made = world()
    in_turns(made, speculate)
    made.command(made.record.trial.name, state="Paused")
    made.reconcile()
    made.run(130)
    assert {made.num_steps(engine) for engine in made.engines.values()} == {5}


def test_a_new_process_repeats_the_open_pair_and_keeps_the_complete_ones(world, speculate):
    made = world()
    before = in_turns(made, speculate)
    assert made.run(60, step_s=1, until=lambda w: w.record.trial.period.number % 2)
    made.end_operator()
    after = made.record.trial
    assert after.evidence.pairs == before.evidence.pairs
    assert after.period.number == 2 * made.record.trial.period.pair
    ended = made.run_to_end()
    assert ended.verdict in ("Promoted", "Inconclusive")


def test_the_table_of_a_trial_expires_and_that_of_a_verdict_stays(world, speculate):
    made = world()
    in_turns(made, speculate)
    assert look(made).expires_after_s == 3 * 60
    made.speeds = {3: 0.03}
    assert made.run(600, step_s=1, until=lambda w: w.record.trial.phase.is_ending)
    ending = look(made)
    assert ending.tables
    assert ending.expires_after_s is None


def test_an_ending_trial_looks_at_some_pods_at_a_time_until_all_run_the_last_table(
    world, speculate
):
    made = world(replicas=40)
    in_turns(made, speculate)
    made.command(made.record.trial.name, promote=True)
    assert made.run(30, until=lambda w: w.record.trial.phase.is_ending)
    seen: list[set[str]] = []
    while made.record.trial is not None:
        found = look(made)
        assert found.tables.keys() == {pod["metadata"]["uid"] for pod in found.pods}
        seen.append(set(found.tables))
        made.run(2.5, step_s=2.5)
    assert max(map(len, seen)) == 16
    assert len(set().union(*seen)) == 40
    assert {made.num_steps(engine) for engine in made.engines.values()} == {3}
