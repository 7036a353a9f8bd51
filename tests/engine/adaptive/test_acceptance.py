"""Acceptance by position: nothing censored, little lost to noise, changes found."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.adaptive.acceptance import (
    AcceptanceModel,
    AcceptanceRates,
    ChangeDetector,
    Counts,
    count_by_position,
    expected_tokens,
)

TRUE = (0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8)


def draw_step(draw: random.Random, rate: float, requests: int, num_steps: int) -> Counts:
    """Counts of a step in which every position is accepted at `rate`."""
    lengths = []
    for _ in range(requests):
        length = 0
        while length < num_steps and draw.random() < rate:
            length += 1
        lengths.append(length)
    return count_by_position(tuple(lengths), num_steps)


def filled(rate: float, num_steps: int, rounds: int = 300) -> AcceptanceRates:
    """Rates after many steps of four requests."""
    draw, rates = random.Random(1), AcceptanceRates(7)
    for _ in range(rounds):
        rates.add(draw_step(draw, rate, 4, num_steps), 0.998)
    return rates


def test_a_round_counts_as_trials_only_positions_that_were_reached() -> None:
    assert count_by_position((0, 1, 3, 3), 3) == ((4, 3, 2), (3, 2, 2))
    assert count_by_position((), 2) == ((0, 0), (0, 0))


@settings(derandomize=True, max_examples=50)
@given(st.integers(1, 7), st.lists(st.integers(0, 7), max_size=20))
def test_no_position_is_accepted_more_often_than_tried(steps: int, lengths: list[int]) -> None:
    trials, accepted = count_by_position(tuple(min(length, steps) for length in lengths), steps)
    assert len(trials) == len(accepted) == steps
    assert all(more >= fewer for more, fewer in zip(trials, accepted, strict=True))
    assert trials[1:] == accepted[:-1]
    assert sum(accepted) == sum(min(length, steps) for length in lengths)


@pytest.mark.parametrize("num_steps", [1, 3, 7])
def test_a_shallow_depth_teaches_what_it_can_about_a_deep_one(num_steps: int) -> None:
    rates = filled(0.8, num_steps)
    expected = expected_tokens(rates.rates())
    assert expected[7] == pytest.approx(expected_tokens(TRUE)[7], rel=0.12)
    assert rates.trials[num_steps:] == [0.0] * (7 - num_steps)


def test_expected_tokens_are_one_without_drafting_and_all_where_all_is_accepted() -> None:
    assert expected_tokens((1.0, 1.0, 1.0)) == [1.0, 2.0, 3.0, 4.0]
    assert expected_tokens((0.5, 0.5)) == [1.0, 1.5, 1.75]


@pytest.mark.parametrize("positions", [7, 16])
def test_a_perfect_draft_may_fail(positions: int) -> None:
    """Estimates of deep positions are so close to 1 that they would round to it."""
    model = AcceptanceModel(positions)
    perfect = count_by_position((positions,) * 4, positions)
    for _ in range(600):
        model.learn(perfect, is_probe=False)
    assert 0.999 < max(model.now.rates()) < 1.0
    changes = [
        model.learn(count_by_position((kept,) * 4, positions), is_probe=number % 2 == 0)
        for number, kept in enumerate([positions - 1, 0, 3, 0] * 50)
    ]
    assert any(changes)
    assert all(0.0 < rate < 1.0 for rate in model.now.rates())


@pytest.mark.parametrize("mean", [12, 30, 200])
@pytest.mark.parametrize("rate", [0.3, 0.8, 0.95])
def test_what_steps_decode_beyond_the_ends_of_answers_does_not_count(
    rate: float, mean: int
) -> None:
    draw, num_steps = random.Random(mean), 7
    tokens = steps = 0
    for _ in range(5_000):
        length = draw.randint(mean - 5, mean + 5)
        tokens += length
        while length > 0:
            steps += 1
            length -= 1
            for _ in range(num_steps):
                if draw.random() >= rate:
                    break
                length -= 1
    expected = expected_tokens((rate,) * num_steps, mean)
    assert expected[num_steps] == pytest.approx(tokens / steps, rel=0.02)
    assert expected[0] == 1.0
    assert expected < expected_tokens((rate,) * num_steps)


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.tuples(st.integers(1, 7), st.integers(1, 9), st.integers(0, 7)), max_size=30))
def test_rates_stay_between_zero_and_one_whatever_was_accepted(
    steps: list[tuple[int, int, int]],
) -> None:
    model = AcceptanceModel(7)
    for num_steps, requests, accepted in steps:
        counts = count_by_position((min(accepted, num_steps),) * requests, num_steps)
        model.learn(counts, is_probe=num_steps == 1)
    assert all(0.0 < rate < 1.0 for rate in model.now.rates())
    tokens = expected_tokens(model.now.rates())
    assert tokens == sorted(tokens)


@pytest.mark.parametrize(("before", "after"), [(0.85, 0.3), (0.3, 0.85), (0.8, 0.6)])
def test_a_step_is_found_within_a_few_drafts_and_dated(before: float, after: float) -> None:
    draw, detector, rates = random.Random(3), ChangeDetector(), filled(before, 3)
    for _ in range(100):
        counts = draw_step(draw, before, 4, 3)
        assert detector.since_change(rates.rates(), counts) == []
    number = 0
    changed: list[tuple[Sequence[int], Sequence[int]]] = []
    while not changed:
        number += 1
        changed = detector.since_change(rates.rates(), draw_step(draw, after, 4, 3))
    is_great = abs(before - after) > 0.5
    assert 4 * number <= (24 if is_great else 120)
    assert len(changed) <= number + (5 if is_great else 20)


def test_a_change_begins_where_the_shift_that_explains_it_best_does() -> None:
    detector, rate = ChangeDetector(), [0.03]
    for _ in range(3):  # a little more than the rate: a small shift begins here
        assert detector.since_change(rate, ((64,), (4,))) == []
    assert detector.since_change(rate, ((64,), (61,))) == [((64,), (61,))]


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.8, 0.95])
def test_noise_alone_is_hardly_ever_taken_for_change(rate: float) -> None:
    draw, detector = random.Random(4), ChangeDetector()
    true, alarms = [rate] * 7, 0
    for _ in range(5000):
        alarms += bool(detector.since_change(true, draw_step(draw, rate, 4, 5)))
    assert alarms <= 5


def test_a_shared_fate_raises_fewer_alarms_than_its_swings_would() -> None:
    draw, detector = random.Random(5), ChangeDetector()
    alarms = 0
    for _ in range(2000):
        rate = draw.choice((0.9, 0.5))
        alarms += bool(detector.since_change([0.7] * 7, draw_step(draw, rate, 8, 1)))
    assert alarms <= 20


def learned(*phases: tuple[float, int, int]) -> AcceptanceModel:
    """A model after phases of (rate, steps, draft steps) with four requests."""
    draw, model = random.Random(6), AcceptanceModel(7)
    for rate, steps, num_steps in phases:
        for _ in range(steps):
            model.learn(draw_step(draw, rate, 4, num_steps), is_probe=num_steps == 1)
    return model


def test_rates_that_come_back_are_known_again_with_their_deep_positions() -> None:
    model = learned((0.85, 200, 7), (0.3, 30, 7))
    assert model.now.rates()[0] < 0.5
    back = learned((0.85, 200, 7), (0.3, 30, 7), (0.85, 12, 1))
    assert back.now.rates()[0] > 0.7
    assert back.now.trials[6] > 100


def test_rates_unlike_both_are_learned_afresh() -> None:
    model = learned((0.95, 200, 7), (0.6, 40, 7), (0.1, 40, 7))
    assert model.now.rates()[0] < 0.25


def test_probes_of_one_draft_step_recall_the_rates_before() -> None:
    model = learned((0.85, 200, 7), (0.2, 20, 7), (0.2, 200, 1))
    assert model.now.rates()[0] < 0.4
    assert learned((0.85, 200, 7), (0.2, 220, 1), (0.85, 6, 1)).now.rates()[0] > 0.7
