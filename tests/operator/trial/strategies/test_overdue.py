"""How late a trial is: what the alert on a stuck trial rests on."""

from typing import Any

import pytest

from specdecode_operator.cluster.metrics import Metrics, OverdueTrial
from specdecode_operator.objects.observed import Key
from specdecode_operator.objects.resource import parse
from specdecode_operator.process.run import _build
from specdecode_operator.settings import Settings
from specdecode_operator.trial.strategies.overdue import overdue_s

PAIR_S = 2.0 * (1.25 * 20.0 + 2.0)  # of the world's switchback, at most
LIMIT_S = 2.0 * (300.0 + PAIR_S)


def late_s(made):
    trial = made.record.trial
    return overdue_s(trial, parse(made.resource).spec, made.now_s)


@pytest.fixture
def measuring(world, speculate):
    """A trial in turns with a complete pair."""
    made = world()
    made.edit(speculation=speculate(3))
    assert made.run(300, step_s=2, until=lambda w: w.record.trial and w.record.trial.evidence.pairs)
    return made


@pytest.mark.parametrize(
    ("rollout", "edit"),
    [
        ({}, "table"),
        ({"strategy": "Canary", "canary": {"replicas": 5}}, "page"),
        ({"strategy": "Switchback", "guard": {"maxDuration": "2h"}}, "page"),
    ],
    ids=["Hot", "Canary", "Switchback"],
)
def test_a_trial_that_runs_as_usual_is_never_late(world, speculate, rollout, edit):
    made = world(**rollout)
    made.start_s = 10.0
    made.edit(**({"pageSize": 32} if edit == "page" else {"speculation": speculate(3)}))
    found = []

    def is_over(seen):
        if seen.record.trial is not None:
            found.append(late_s(seen))
        return bool(found) and seen.record.trial is None

    assert made.run(9000, until=is_over)
    assert len(found) > 20
    assert set(found) == {0.0}


def test_a_trial_whose_pods_do_not_answer_is_late_long_before_its_time_is_over(measuring):
    measuring.is_silent = True
    began_s = measuring.record.trial.progress_s
    assert measuring.run(1500, until=lambda w: late_s(w) > 0.0)
    assert measuring.now_s - began_s == pytest.approx(LIMIT_S, abs=20.0)
    before = late_s(measuring)
    measuring.run(100)
    assert late_s(measuring) == pytest.approx(before + 100.0)


def test_a_new_leader_continues_the_clock(measuring):
    measuring.is_silent = True
    measuring.run(LIMIT_S)
    measuring.end_operator()
    measuring.run(30)
    assert late_s(measuring) > 0.0


def test_a_paused_trial_is_not_late_and_begins_again_when_it_goes_on(measuring):
    name = measuring.record.trial.name
    measuring.command(name, state="Paused")
    measuring.run(2.0 * LIMIT_S)
    assert late_s(measuring) is None
    measuring.command(name, state="Running")
    measuring.run(20)
    assert late_s(measuring) == 0.0


def test_an_open_pair_that_is_given_up_again_and_again_is_no_progress(measuring):
    began_s = measuring.record.trial.progress_s
    for _ in range(60):
        measuring.run(15)
        del measuring.engines[next(iter(measuring.engines))]
    assert measuring.record.trial.progress_s == began_s
    assert late_s(measuring) > 0.0


def test_the_metric_names_resource_and_trial_and_is_absent_without_one():
    metrics = Metrics("test")
    running = [OverdueTrial(Key("ml", "chat"), "chat-1", 90.0)]
    metrics.watch_trials(lambda: running)
    name = "specdecode_operator_trial_overdue_seconds"
    labels = {"resource_namespace": "ml", "deployment": "chat", "trial": "chat-1"}
    assert metrics.registry.get_sample_value(name, labels) == 90.0
    running.clear()
    assert metrics.registry.get_sample_value(name, labels) is None


def test_an_operator_that_stands_by_reports_no_trials(measuring):
    """It may have led before, and its memory of trials grows old then."""
    metrics = Metrics("test")
    nothing: Any = None
    built = _build(Settings(engine_image="engine:test"), nothing, nothing, metrics)
    trial, spec = measuring.record.trial, parse(measuring.resource).spec
    built.reconciler.running[Key("default", "chat-standalone")] = trial, spec

    def trials():
        families = {each.name: each for each in metrics.registry.collect()}
        samples = families["specdecode_operator_trial_overdue_seconds"].samples
        return [sample.labels["trial"] for sample in samples]

    assert trials() == []
    built.gate.open()
    assert trials() == [trial.name]
