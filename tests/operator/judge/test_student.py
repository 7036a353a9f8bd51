"""Student's distribution, against the tables."""

import pytest

from specdecode_operator.judge.student import quantile, upper_tail


@pytest.mark.parametrize(
    ("alpha", "freedom", "value"),
    [(0.05, 4, 2.131847), (0.01, 8, 2.896459), (0.0025, 8, 3.832519), (0.01, 1, 31.820516),
     (0.01, 2, 6.964557), (0.01, 3, 4.540703), (0.025, 30, 2.042272)],
)  # fmt: skip
def test_quantiles_are_those_of_the_tables(alpha, freedom, value):
    assert quantile(alpha, freedom) == pytest.approx(value, rel=1e-5)
    assert upper_tail(value, freedom) == pytest.approx(alpha, rel=1e-4)
