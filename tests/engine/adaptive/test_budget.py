"""The best positions to verify: those that no other set of as many rows exceeds."""

import itertools
from itertools import accumulate, product
from operator import mul

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.adaptive.budget import NOTHING, BatchCost, Positions
from specdecode_engine.adaptive.cost import CostModel, CostPoint

rates = st.floats(0.02, 0.98)
chains = st.lists(rates, min_size=0, max_size=3).map(lambda row: list(accumulate(row, mul)))


def cost_of(seconds: list[float]) -> BatchCost:
    """Make a curve through these seconds of 1, 2, 4, … rows."""
    points = [CostPoint(2**place, 0, 0, one) for place, one in enumerate(seconds)]
    return BatchCost(0.001, 0.0001, CostModel(points).verify_pieces())


def seconds_of(cost: BatchCost, rows: int) -> float:
    piece = next(one for one in cost.pieces if rows <= one.end)
    curve_s = piece.seconds + piece.per_row * (rows - piece.start)
    return cost.fixed_s + cost.row_s * rows + curve_s


def best_of_all(
    chains: list[list[float]], num_steps: int, drafting_s: float, cost: BatchCost, width: int
) -> float:
    """Try every number of verified positions of every request."""
    best = 0.0
    for depths in product(*(range(min(len(chain), num_steps) + 1) for chain in chains)):
        tokens = len(chains) + sum(
            sum(chain[:depth]) for chain, depth in zip(chains, depths, strict=True)
        )
        seconds = drafting_s + seconds_of(cost, len(chains) + width * sum(depths))
        best = max(best, tokens / seconds)
    return best


@settings(max_examples=200, deadline=None)
@given(
    st.lists(chains, min_size=1, max_size=4),
    st.lists(st.floats(0.001, 0.004), min_size=3, max_size=5),
    st.integers(0, 3),
    st.sampled_from([1, 2]),
)
def test_no_other_set_of_positions_has_more_tokens_per_second(
    found: list[list[float]], rises: list[float], num_steps: int, width: int
) -> None:
    cost = cost_of(list(accumulate(rises)))
    groups = dict.fromkeys(range(len(found)), 1)
    positions = Positions(groups, dict(enumerate(found)), set(), width)
    prefix = positions.best_prefix(num_steps, 0.002, cost)
    expected = best_of_all(found, num_steps, 0.002, cost, width)
    assert prefix.rate == pytest.approx(expected)
    counts = [sum(chance >= prefix.least for chance in one[:num_steps]) for one in found]
    rows = len(found) + width * sum(counts)
    tokens = len(found) + sum(sum(one[:count]) for one, count in zip(found, counts, strict=True))
    seconds = 0.002 + seconds_of(cost, rows)
    survivals = list(itertools.chain.from_iterable(found))
    if len(set(survivals)) == len(survivals):  # equal ones are verified all
        assert tokens / seconds == pytest.approx(prefix.rate)


def test_requests_of_a_group_count_as_often_as_there_are() -> None:
    cost = cost_of([0.01, 0.011, 0.012, 0.013])
    chains = {0: [0.9, 0.8], 1: [0.3, 0.1]}
    grouped = Positions({0: 3, 1: 2}, chains, set(), 1).best_prefix(2, 0.001, cost)
    single = {number: chains[number > 2] for number in range(5)}
    alone = Positions(dict.fromkeys(single, 1), single, set(), 1).best_prefix(2, 0.001, cost)
    assert grouped == pytest.approx(alone)


def test_a_position_that_is_due_is_verified_wherever_there_is_a_draft() -> None:
    cost = cost_of([0.01, 0.02, 0.04, 0.08])
    hopeless = Positions({0: 1}, {0: [0.01, 0.0]}, set(), 1)
    due = Positions({0: 1}, {0: [0.01, 0.0]}, {0}, 1)
    assert hopeless.best_prefix(1, 0.0, cost).least == NOTHING
    assert due.best_prefix(1, 0.0, cost).rate < hopeless.best_prefix(1, 0.0, cost).rate
    assert due.best_prefix(0, 0.0, cost) == hopeless.best_prefix(0, 0.0, cost)
