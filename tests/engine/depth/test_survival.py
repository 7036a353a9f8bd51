"""Acceptance by position: nothing censored, little lost to noise, changes found."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.depth.change import ChangeDetector
from specdecode_engine.depth.regimes import Regimes
from specdecode_engine.depth.survival import Rates, count_round, expected_tokens

TRUE = (0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8)
Counts = tuple[list[int], list[int]]


def draw_round(draw: random.Random, rate: float, requests: int, num_steps: int) -> Counts:
    """Counts of a round in which every position is accepted at `rate`."""
    lengths = []
    for _ in range(requests):
        length = 0
        while length < num_steps and draw.random() < rate:
            length += 1
        lengths.append(length)
    return count_round(tuple(lengths), num_steps)


def filled(rate: float, num_steps: int, rounds: int = 300) -> Rates:
    """Rates after many rounds of four requests."""
    draw, rates = random.Random(1), Rates(7, 6.0)
    for _ in range(rounds):
        rates.add(0.998, *draw_round(draw, rate, 4, num_steps))
    return rates


def test_a_round_counts_as_trials_only_positions_that_were_reached() -> None:
    assert count_round((0, 1, 3, 3), 3) == ((4, 3, 2), (3, 2, 2))
    assert count_round((), 2) == ((0, 0), (0, 0))


@settings(derandomize=True, max_examples=50)
@given(st.integers(1, 7), st.lists(st.integers(0, 7), max_size=20))
def test_no_position_is_accepted_more_often_than_tried(steps: int, lengths: list[int]) -> None:
    trials, accepted = count_round(tuple(min(length, steps) for length in lengths), steps)
    assert len(trials) == len(accepted) == steps
    assert all(more >= fewer for more, fewer in zip(trials, accepted, strict=True))
    assert trials[1:] == accepted[:-1]
    assert sum(accepted) == sum(min(length, steps) for length in lengths)


@pytest.mark.parametrize("num_steps", [1, 3, 7])
def test_a_shallow_depth_tells_as_much_of_a_deep_one_as_there_is_to_tell(num_steps: int) -> None:
    rates = filled(0.8, num_steps)
    expected = expected_tokens(rates.conditional())
    assert expected[7] == pytest.approx(expected_tokens(TRUE)[7], rel=0.12)
    assert rates.trials[num_steps:] == [0.0] * (7 - num_steps)


def test_expected_tokens_are_one_without_drafting_and_all_where_all_is_accepted() -> None:
    assert expected_tokens((1.0, 1.0, 1.0)) == [1.0, 2.0, 3.0, 4.0]
    assert expected_tokens((0.5, 0.5)) == [1.0, 1.5, 1.75]


def test_estimates_of_a_range_go_from_those_of_all_to_its_own() -> None:
    wide, own = filled(0.8, 3), Rates(7, 6.0)
    assert own.leaning_on(wide.conditional(), 64.0) == pytest.approx(wide.conditional())
    draw, distances = random.Random(2), []
    for _ in range(5):
        for _ in range(40):
            own.add(1.0, *draw_round(draw, 0.2, 4, 3))
        distances.append(abs(own.leaning_on(wide.conditional(), 64.0)[0] - 0.2))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.1


@pytest.mark.parametrize(("before", "after"), [(0.85, 0.3), (0.3, 0.85), (0.8, 0.6)])
def test_a_step_is_found_within_a_few_drafts_and_dated(before: float, after: float) -> None:
    draw, detector, rates = random.Random(3), ChangeDetector(), filled(before, 3)
    for _ in range(100):
        counts = draw_round(draw, before, 4, 3)
        assert detector.since_change(rates.conditional(), *counts) == []
    number, changed = 0, []
    while not changed:
        number += 1
        changed = detector.since_change(rates.conditional(), *draw_round(draw, after, 4, 3))
    is_great = abs(before - after) > 0.5
    assert 4 * number <= (24 if is_great else 120)
    assert len(changed) <= number + (5 if is_great else 20)


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8, 0.95])
def test_noise_alone_is_hardly_ever_taken_for_change(rate: float) -> None:
    draw, detector = random.Random(4), ChangeDetector()
    true, alarms = [rate] * 7, 0
    for _ in range(5000):
        alarms += bool(detector.since_change(true, *draw_round(draw, rate, 4, 5)))
    assert alarms <= 5


def test_a_shared_fate_raises_fewer_alarms_than_its_swings_would() -> None:
    draw, detector = random.Random(5), ChangeDetector()
    alarms = 0
    for _ in range(2000):
        rate = draw.choice((0.9, 0.5))
        alarms += bool(detector.since_change([0.7] * 7, *draw_round(draw, rate, 8, 1)))
    assert alarms <= 20


def test_what_comes_back_is_known_again_with_its_deep_positions() -> None:
    draw, regimes = random.Random(6), Regimes(7, 6.0)
    for _ in range(200):
        regimes.now.add(0.998, *draw_round(draw, 0.85, 4, 7))
    good = regimes.now
    regimes.change([draw_round(draw, 0.3, 4, 7) for _ in range(6)])
    assert regimes.now is not good
    assert regimes.now.conditional()[0] < 0.5
    regimes.change([draw_round(draw, 0.85, 4, 1) for _ in range(6)])
    assert regimes.now is good
    assert regimes.now.trials[6] > 100


def test_what_is_unlike_both_is_learned_anew() -> None:
    draw, regimes = random.Random(7), Regimes(7, 6.0)
    for _ in range(200):
        regimes.now.add(0.998, *draw_round(draw, 0.95, 4, 7))
    regimes.change([draw_round(draw, 0.6, 8, 7) for _ in range(8)])
    regimes.change([draw_round(draw, 0.1, 8, 7) for _ in range(8)])
    assert regimes.now.conditional()[0] < 0.25


def test_probes_alone_recall_what_was_before() -> None:
    draw, regimes = random.Random(8), Regimes(7, 6.0)
    for _ in range(200):
        regimes.now.add(0.998, *draw_round(draw, 0.85, 4, 7))
    regimes.change([draw_round(draw, 0.2, 4, 7) for _ in range(20)])
    bad = [regimes.recalls(draw_round(draw, 0.2, 4, 1)) for _ in range(200)]
    assert not any(bad)
    recalled = [regimes.recalls(draw_round(draw, 0.85, 4, 1)) for _ in range(4)]
    assert any(recalled)
