"""Policy goodput drafts again once the draft is useful, at less than a hundredth of the time."""

import random
from itertools import groupby

import pytest

from tests.engine.adaptive.test_goodput import CANDIDATES, Machine, Rounds, policy

PLAIN_S = 6e-3
COSTS = (0.7, 1.0, 1.3)
# Plain steps that catching up takes in `Rounds` at most, at batch size 1.
CATCHING_UP = 64 * 20e-6 / PLAIN_S


def machine(cost: float) -> Machine:
    """The first draft step takes `cost` plain steps and a further one 0.1; so does a request."""

    def seconds(batch_size: int, num_steps: int) -> float:
        drafting = cost + 0.1 * (num_steps - 1) if num_steps else 0.0
        return PLAIN_S * (1.0 + drafting) * (0.9 + 0.1 * batch_size)

    return seconds


def served(cost: float, seed: int = 0) -> Rounds:
    return Rounds(policy(machine(cost)), machine(cost), seed)


def longest_stay(depths: list[int]) -> int:
    return max(len(list(steps)) for depth, steps in groupby(depths) if not depth)


def returns_after(rounds: Rounds, limit: int) -> int:
    """Return the steps at survival 0.83 until the policy keeps draft steps, `limit` at most."""
    for number in range(limit):
        rounds.run(1, 1, 0.83)
        if rounds.depth.states()[0].num_steps:
            return number
    return limit


@pytest.mark.parametrize("cost", COSTS)
def test_http_11_drafts_return_after_constrained_requests(cost: float) -> None:
    steps = list[int]()
    for seed in range(20):
        rounds = served(cost, seed)
        rounds.run(3000, 1, 0.83)
        rounds.run(600, 1, 0.2)
        steps.append(returns_after(rounds, 1500))
    assert sum(number < 1500 for number in steps) >= 19


@pytest.mark.parametrize("rate", [0.02, 0.2])
@pytest.mark.parametrize("cost", COSTS)
def test_a_useless_draft_takes_less_than_a_hundredth_of_the_time(cost: float, rate: float) -> None:
    rounds = served(cost)
    rounds.run(200, 1, rate)
    depths = rounds.run(6000, 1, rate)
    tokens = sum(rate**length for depth in depths for length in range(depth + 1))
    assert sum(rounds.seconds[200:]) < 1.01 * tokens * PLAIN_S


@pytest.mark.parametrize("cost", [0.2, *COSTS, 3.0])
def test_no_interval_between_probes_is_longer_than_the_credit_for_refused_ones_takes(
    cost: float,
) -> None:
    longest = 0
    for seed in range(4):
        draw, rounds = random.Random(seed), served(cost, seed)
        for _ in range(8):
            rate = draw.choice((0.0, 0.2, 0.4, 0.6, 0.83, 0.97))
            rounds.run(draw.randint(100, 1500), 1, rate)
        longest = max(longest, longest_stay([one.num_steps for one in rounds.decisions]))
    last_cost = cost + 0.1 * (CANDIDATES[-1] - 1)
    assert longest <= 1.1 * max(260.0, 200 * (cost + last_cost + 2 * CATCHING_UP)) + 8
