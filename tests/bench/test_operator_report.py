"""The figures of `make bench-operator`: percentiles, targets, and which are missed."""

import pytest

from bench.operator.report import ROWS, missed, percentile, table


@pytest.mark.parametrize(
    ("share", "value"), [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1), (0.991, 100)]
)
def test_percentiles_are_values_that_were_measured(share, value):
    assert percentile(range(100, 0, -1), share) == value


def test_a_figure_on_the_wrong_side_is_missed_and_one_without_a_value_is_not():
    good = {row.name: row.at_most if row.at_most is not None else row.at_least for row in ROWS}
    assert missed(good) == []
    assert missed(good | {"steady_writes_per_min": 0.1}) == ["steady_writes_per_min"]
    assert missed(good | {"burst_share_of_api_limit": 0.59}) == ["burst_share_of_api_limit"]
    assert missed({}) == []
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_the_table_shows_what_is_missed_and_what_is_not_known():
    lines = table({"restart_converge_s": 7.5, "decision_delay_s": None}).splitlines()
    row = next(line for line in lines if line.startswith("O5 kill"))
    assert row.split()[-4:] == ["7.5", "<=", "5", "missed"]
    row = next(line for line in lines if line.startswith("O4"))
    assert row.split()[-3:] == ["–", "<=", "3.5"]


def test_a_percentile_is_one_of_the_values():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
