"""The load of the acts: bursts that are the same for a seed, content that sticks to pods."""

from itertools import pairwise

import pytest

from specdecode_api.v1alpha1 import RolloutSpec
from traffic.load import CLIENTS
from traffic.questions import QUESTIONS
from trials.acts import EQUAL, LONG, QUICK
from trials.bursts import MEAN_DWELL_S, TIMES, Bursts, sticky_clients


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
