"""Bounds from the random order of turns: they hold at every look, in every world."""

import math
import random

import pytest

from specdecode_operator.judge.randomization import (
    centre_of,
    evidence_path,
    fewest_pairs,
    first_shown,
    is_above,
    lower_bound,
    upper_bound,
)


def shifted(effects):
    return lambda at: [effect - at for effect in effects]


def worlds():
    """Differences between the two turns of pairs, before their order is drawn."""
    draw = random.Random(5)
    walk, ar1 = 0.0, []
    for _ in range(60):
        walk = 0.8 * walk + draw.gauss(0.0, 0.1)
        ar1.append(walk)
    return {
        "normal": [draw.gauss(0.0, 0.03) for _ in range(60)],
        "autocorrelated": ar1,
        "two points": [0.3] * 60,
        "skewed": [math.exp(draw.gauss(0.0, 1.5)) - 1.0 for _ in range(60)],
        "trend": [0.01 * index for index in range(60)],
        "one enormous pair": [0.001] * 30 + [50.0] + [0.001] * 29,
    }


@pytest.mark.parametrize("name", worlds())
def test_equal_arms_are_called_different_at_most_as_often_as_stated(name):
    draw, differences, wrong, runs = random.Random(name), worlds()[name], 0, 1500
    for _ in range(runs):
        effects = [each if draw.random() < 0.5 else -each for each in differences]
        wrong += is_above(effects, 0.05)
    assert wrong / runs < 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def test_the_evidence_never_falls_and_grows_with_clear_effects():
    path = evidence_path([0.05, 0.04, 0.06, -0.01, 0.05])
    assert path == sorted(path)
    assert evidence_path([0.05] * 12)[-1] > -math.log(0.01) > evidence_path([0.05] * 5)[-1]


@pytest.mark.parametrize("alpha", [0.3, 0.05, 0.004, 0.0008])
def test_the_first_pairs_that_show_an_effect_are_where_the_whole_path_reaches_it(alpha):
    draw, found = random.Random(alpha), []
    for count in range(200):
        effects = [draw.gauss(draw.choice([-0.02, 0.0, 0.01, 0.05]), 0.03) for _ in range(count)]
        path = evidence_path(effects)
        reached = (at for at, each in enumerate(path, 1) if each >= -math.log(alpha))
        found.append(first_shown(effects, alpha))
        assert found[-1] == next(reached, None)
        assert is_above(effects, alpha) == bool(path and path[-1] >= -math.log(alpha))
    assert {each is None for each in found} == {True, False}


@pytest.mark.parametrize(("alpha", "pairs"), [(0.01, 9), (0.0014, 12)])
def test_the_fewest_pairs_are_those_that_clear_effects_need(alpha, pairs):
    assert fewest_pairs(alpha) == pairs
    assert is_above([1.0] * pairs, alpha)
    assert not is_above([1.0] * (pairs - 1), alpha)


def test_bounds_contain_the_effect_and_follow_it():
    draw = random.Random(3)
    effects = [0.05 + draw.gauss(0.0, 0.03) for _ in range(50)]
    centre = centre_of(effects)
    low, high = (bound(shifted(effects), centre, 0.01) for bound in (lower_bound, upper_bound))
    assert 0.0 < low < 0.05 < high < 0.1
    moved = [effect + 0.2 for effect in effects]
    assert lower_bound(shifted(moved), centre + 0.2, 0.01) == pytest.approx(low + 0.2)


def test_pairs_in_which_the_load_changed_do_not_hide_an_effect():
    draw = random.Random(3)
    effects = [
        0.1 + draw.gauss(0.0, 0.03) + (draw.choice([-1, 1]) * 0.5 if draw.random() < 0.3 else 0.0)
        for _ in range(50)
    ]
    assert is_above(effects, 0.01)


def test_few_pairs_bound_nothing():
    assert lower_bound(shifted([0.1] * 4), 0.1, 0.01) == pytest.approx(-0.9)
    assert upper_bound(shifted([0.1] * 4), 0.1, 0.01) == pytest.approx(1.1)
