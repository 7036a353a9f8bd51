"""The guard refuses what cannot be kept, and shares its error."""

import math

import pytest

from specdecode_operator.judge.guard import Guard


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", 0.0),
        ("promote_alpha", 0.6),
        ("min_gain", -0.01),
        ("margin", math.nan),
        ("min_coverage", 1.1),
        ("min_pairs", 1),
        ("max_duration_s", 10.0),
        ("first_token_margin", 1.5),
        ("tail_rise", 0.0),
        ("max_restarts", -1),
    ],
)
def test_bad_bounds_are_refused_with_name_value_and_remedy(name, value):
    with pytest.raises(ValueError, match=f"guard: {name} is {value}; set it between"):
        Guard(**{name: value})


def test_the_shares_add_up_to_the_error_of_a_rollback():
    guard = Guard(alpha=0.03)
    assert 2.0 * guard.loss_alpha + guard.rail_alpha == pytest.approx(0.03)
