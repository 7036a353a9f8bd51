"""The acts: their load, what they write into the resource, and what they take for the best."""

from itertools import pairwise

import pytest

from checks.traffic.load import CLIENTS
from checks.traffic.questions import QUESTIONS
from checks.trials.acts import ALGORITHMS, EQUAL, LONG, QUICK, Ended, best_of
from checks.trials.bursts import MEAN_DWELL_S, TIMES, Bursts, sticky_clients
from specdecode_api.v1alpha1 import RolloutSpec, Speculation
from specdecode_operator.objects.merge_patch import merge_patch


def test_bursts_and_pauses_alternate_and_are_the_same_for_a_seed():
    found = Bursts.drawn(3)
    assert found == Bursts.drawn(3) != Bursts.drawn(4)
    middles = [(one + other) / 2 for one, other in pairwise((0.0, *found.borders_s))]
    states = [found.is_on(at_s) for at_s in middles]
    assert states[0] is False
    assert all(one != other for one, other in pairwise(states))


def test_bursts_have_the_stated_mean():
    borders_s = Bursts.drawn(1).borders_s
    assert borders_s[-1] / len(borders_s) == pytest.approx(MEAN_DWELL_S, rel=0.1)


def test_a_burst_multiplies_the_clients_which_keep_connection_and_content():
    further = sticky_clients()
    assert len(further) + len(CLIENTS) == TIMES * len(CLIENTS)
    assert all(each.keeps_connections and len(each.questions) == 1 for each in further)
    assert {each.questions[0] for each in further} == set(QUESTIONS)
    assert {each.is_stream for each in further} == {True, False}


def test_the_rollout_of_the_acts_is_admitted():
    RolloutSpec.model_validate(QUICK)
    for change in (LONG, EQUAL):
        RolloutSpec.model_validate({**QUICK, **change})


@pytest.mark.parametrize("change", ALGORITHMS, ids=lambda each: each["algorithm"])
def test_an_edit_to_each_algorithm_is_admitted(change):
    before = {**ALGORITHMS[0], "adaptive": {"policy": "Static"}}
    edited = Speculation.model_validate(merge_patch(before, change))
    assert (edited.algorithm, edited.num_steps) == (change["algorithm"], change["numSteps"])


@pytest.mark.parametrize(
    ("verdicts", "best"),
    [
        (("Promoted", "RolledBack"), "NGRAM"),
        (("RolledBack", "Promoted"), "DFLASH"),
        (("Promoted", "Promoted"), "DFLASH"),
        (("RolledBack", "Inconclusive"), "EAGLE3"),
    ],
)
def test_the_algorithm_that_was_promoted_last_is_the_best(verdicts, best):
    trials = [Ended(verdict, "", 0, 0.0) for verdict in verdicts]
    assert best_of(trials)["algorithm"] == best
