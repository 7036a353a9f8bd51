"""The error budget over months."""

import random

import pytest

from specdecode_operator.judge.wealth import Wealth, earn, spend


def test_all_trials_together_never_spend_more_than_there_is():
    wealth, spent = Wealth(initial=0.05), 0.0
    for _ in range(5000):
        grant = spend(wealth, most=1.0)
        wealth, spent = grant.wealth, spent + grant.alpha
        assert grant.alpha > 0.0
    assert 0.045 < spent <= 0.05
    assert wealth.trials == 5000


def test_the_first_trials_by_hand():
    first = spend(Wealth(initial=0.05), most=1.0)
    assert first.alpha == pytest.approx(0.05 * (1 - 0.63093))
    second = spend(first.wealth, most=1.0)
    assert second.alpha == pytest.approx(0.05 * (0.63093 - 0.5), rel=1e-4)
    assert spend(Wealth()).alpha == 0.01  # no trial gets more than that


def test_a_promotion_earns_and_keeps_the_loop_alive():
    wealth = Wealth()
    for _ in range(50):
        wealth = spend(wealth).wealth
    poor = spend(wealth).alpha
    rich = spend(earn(wealth)).alpha
    assert rich > 10 * poor
    assert earn(wealth).promotions == (50,)


def test_a_hundred_trials_without_gain_in_a_row_rarely_promote():
    draw = random.Random(9)

    def loop(alpha_of):
        wealth = Wealth()
        for _ in range(100):
            grant = spend(wealth)
            wealth = grant.wealth
            if draw.random() < alpha_of(grant):
                return True
        return False

    with_budget = sum(loop(lambda grant: grant.alpha) for _ in range(1000)) / 1000
    without = sum(loop(lambda grant: 0.01) for _ in range(1000)) / 1000
    assert with_budget <= 0.05 < 0.5 < without


def test_bad_budgets_are_refused():
    with pytest.raises(ValueError, match="initial is 0; set it"):
        Wealth(initial=0)
    with pytest.raises(ValueError, match="begin a trial first"):
        earn(Wealth())
