"""Ratios of sums: hand-computed values, and what is too little to say anything."""

import math
import random
import statistics

import pytest

from specdecode_operator.judge.evidence import RequestSums
from specdecode_operator.judge.ratio import (
    STEADIEST,
    log_ratio,
    seconds_per_token,
    tokens_per_round,
)


def test_two_requests_by_hand(sums):
    both = sums([(10.0, 5.0, 1.0), (30.0, 10.0, 2.0)])
    # Tokens per round: 40 / 15. Over the means (20, 7.5): (.5, .667) and (1.5, 1.333).
    accept = log_ratio(tokens_per_round(both))
    assert accept is not None
    assert accept.value == pytest.approx(math.log(40 / 15))
    # ((.5 - .6667)^2 + (1.5 - 1.3333)^2) / 2 / (2 - 1)
    assert accept.variance == pytest.approx((1 / 6) ** 2)
    # Seconds per token: 3 / 40; over their means (1.5, 20): (.6667, .5), (1.3333, 1.5).
    time = log_ratio(seconds_per_token(both))
    assert time is not None
    assert (time.value, time.variance) == pytest.approx((math.log(3 / 40), (1 / 6) ** 2))


@pytest.mark.parametrize(
    "few",
    [
        RequestSums(),
        RequestSums(requests=1.0, tokens=4.0, steps=2.0, seconds=1.0),
        RequestSums(requests=5.0, tokens=0.0, steps=2.0, seconds=1.0),
        RequestSums(requests=5.0, tokens=4.0, steps=2.0, seconds=0.0),
        RequestSums(requests=5.0, tokens=-4.0, steps=2.0, seconds=1.0),
        RequestSums(requests=math.nan, tokens=4.0, steps=2.0, seconds=1.0),
        RequestSums(5.0, 4.0, 2.0, 1.0, math.inf, 1.0, 1.0, 1.0, 1.0),
    ],
)
def test_too_little_or_nonsense_is_no_ratio(few):
    assert log_ratio(seconds_per_token(few)) is None


def test_equal_requests_and_counter_noise_leave_a_least_variance(sums):
    equal = sums([(10.0, 5.0, 1.0)] * 100)
    noisy = equal - RequestSums(seconds_squared=5.0)
    for known in (equal, noisy):
        ratio = log_ratio(seconds_per_token(known))
        assert ratio is not None
        assert ratio.variance == pytest.approx(STEADIEST**2 / 99)


def test_the_variance_is_that_of_repeated_samples(sums):
    draw = random.Random(4)

    def sample():
        # Rounds within a request are correlated: it has an accept length of its own.
        for _ in range(150):
            rounds = 1.0 + int(draw.expovariate(1 / 60))
            yield rounds * draw.lognormvariate(1.0, 0.3), rounds, rounds

    drawn = [log_ratio(tokens_per_round(sums(sample()))) for _ in range(400)]
    ratios = [ratio for ratio in drawn if ratio is not None]
    assert len(ratios) == len(drawn)
    seen = statistics.variance(ratio.value for ratio in ratios)
    said = statistics.mean(ratio.variance for ratio in ratios)
    assert said == pytest.approx(seen, rel=0.15)
