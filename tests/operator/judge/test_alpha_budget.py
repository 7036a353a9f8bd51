"""The error budget over months."""

import random

import pytest

from specdecode_operator.judge.alpha_budget import AlphaBudget, earn, spend
from specdecode_operator.judge.guard import PROMOTE_ALPHA


def test_all_trials_together_never_spend_more_than_there_is():
    alpha_budget, spent = AlphaBudget(initial=0.05), 0.0
    for _ in range(5000):
        grant = spend(alpha_budget, most=1.0)
        alpha_budget, spent = grant.alpha_budget, spent + grant.alpha
        assert grant.alpha > 0.0
    assert 0.045 < spent <= 0.05
    assert alpha_budget.trials == 5000


def test_the_first_trials_by_hand():
    first = spend(AlphaBudget(initial=0.05), most=1.0)
    assert first.alpha == pytest.approx(0.05 * (1 - 0.63093))
    second = spend(first.alpha_budget, most=1.0)
    assert second.alpha == pytest.approx(0.05 * (0.63093 - 0.5), rel=1e-4)
    assert spend(AlphaBudget()).alpha == PROMOTE_ALPHA  # no trial gets more than that


def test_a_promotion_earns_and_keeps_the_loop_alive():
    alpha_budget = AlphaBudget()
    for _ in range(50):
        alpha_budget = spend(alpha_budget).alpha_budget
    poor = spend(alpha_budget).alpha
    rich = spend(earn(alpha_budget)).alpha
    assert rich > 10 * poor
    assert earn(alpha_budget).promotions == (50,)


def test_a_hundred_trials_without_gain_in_a_row_rarely_promote():
    draw = random.Random(9)

    def loop(alpha_of):
        alpha_budget = AlphaBudget()
        for _ in range(100):
            grant = spend(alpha_budget)
            alpha_budget = grant.alpha_budget
            if draw.random() < alpha_of(grant):
                return True
        return False

    with_budget = sum(loop(lambda grant: grant.alpha) for _ in range(1000)) / 1000
    without = sum(loop(lambda grant: 0.01) for _ in range(1000)) / 1000
    assert with_budget <= 0.05 < 0.5 < without


def test_bad_budgets_are_refused():
    with pytest.raises(ValueError, match="initial is 0; set it"):
        AlphaBudget(initial=0)
    with pytest.raises(ValueError, match="begin a trial first"):
        earn(AlphaBudget())
