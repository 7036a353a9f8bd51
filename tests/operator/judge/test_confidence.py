"""Bounds that hold at every look: their values, and how often they are ever wrong."""

import math

import numpy as np
import pytest

from specdecode_operator.judge.confidence import radius, student_radius, tuned_information

ALPHA = 0.05


def test_a_radius_by_hand():
    # alpha .05 one-sided: L = -2 log .1 = 4.60517, best time L + log(L + 1) = 6.32887.
    # Tuned to 100: weight 15.8006; at information 100: total 115.8006,
    # sqrt(2 * 115.8006 * log(sqrt(115.8006 / 15.8006) / .1 + 1)) / 100
    weight = 100 / 6.32887
    expected = math.sqrt(231.6012 * math.log(math.sqrt(115.8006 / weight) / 0.1 + 1)) / 100
    assert radius(0.01, ALPHA, 100.0) == pytest.approx(expected, rel=1e-4)
    assert radius(0.01, ALPHA, 100.0) == pytest.approx(0.2790, abs=2e-3)


def test_a_fixed_size_test_is_narrower_and_not_by_much():
    ratio = radius(0.01, ALPHA, 100.0) / (1.645 * 0.1)
    assert 1.3 < ratio < 1.8


def test_it_is_tightest_where_it_is_tuned():
    tuned = tuned_information(0.05, 0.01)
    others = [tuned / 30, tuned / 5, tuned * 5, tuned * 30]
    assert all(radius(1 / tuned, 0.01, tuned) < radius(1 / tuned, 0.01, other) for other in others)


@pytest.mark.parametrize("unequal", [(1, 1), (9, 1), (1, 9)])
def test_looking_always_is_wrong_as_rarely_as_it_says_for_unequal_arms(unequal):
    rng = np.random.default_rng(11)
    paths, looks = 1500, 120
    old, new = (
        rng.normal(size=(paths, looks, 5 * share)).sum(axis=2).cumsum(axis=1) for share in unequal
    )
    counts = [5 * share * np.arange(1, looks + 1) for share in unequal]
    difference = new / counts[1] - old / counts[0]
    variances = 1 / counts[0] + 1 / counts[1]
    tuned = 1 / variances[looks // 2]
    bounds = np.array([radius(variance, ALPHA, tuned) for variance in variances])
    wrong = (difference > bounds).any(axis=1).mean()
    peeked = (difference > 1.645 * np.sqrt(variances)).any(axis=1).mean()
    assert wrong <= ALPHA
    assert peeked > 3 * ALPHA  # what the bounds are for


def test_few_pairs_by_hand():
    # 8 pairs, both sides at .1: growth 9, most (3 / .1)^(1/4) = 2.34035
    squared = 7 * 1.34035 / (1 - 2.34035 / 9)
    assert student_radius(2.0, 8, ALPHA) == pytest.approx(2 * math.sqrt(squared / 8), rel=1e-4)


def test_too_few_pairs_prove_nothing():
    assert student_radius(1.0, 1, ALPHA) == math.inf
    assert student_radius(1.0, 5, 0.001) == math.inf
    assert student_radius(1.0, 7, 0.01) < math.inf


@pytest.mark.parametrize("draw", ["normal", "heavy", "bursts"])
def test_looking_after_each_pair_is_wrong_as_rarely_as_it_says(draw):
    rng = np.random.default_rng(12)
    shape = (3000, 60)
    pairs = {
        "normal": rng.normal(size=shape),
        "heavy": rng.standard_t(5, size=shape),
        # Equal arms in random order: each burst is as likely to hit the one as the other.
        "bursts": rng.exponential(size=shape) - rng.exponential(size=shape),
    }[draw]
    counts = np.arange(1, 61)
    means = pairs.cumsum(axis=1) / counts
    spreads = np.sqrt(((pairs**2).cumsum(axis=1) - counts * means**2)[:, 1:] / (counts[1:] - 1))
    radii = np.array([student_radius(1.0, int(count), ALPHA) for count in counts[1:]])
    assert (means[:, 1:] > radii * spreads).any(axis=1).mean() <= ALPHA
    assert (means[:, 1:] < -radii * spreads).any(axis=1).mean() <= ALPHA
