"""Queries for the history, and the results of Prometheus as text."""

import json

import pytest

from specdecode_operator.plugin.report.promql import (
    BadResult,
    QueryRange,
    RangeSeries,
    periods,
    queries,
    read_response,
    work_history,
)

WANTED = QueryRange(end_s=1000, step_s=100, count=3)
NOTHING = dict.fromkeys(("tokens", "accept", "steps", "reached", "accepted"), ())


@pytest.mark.parametrize(
    ("since_s", "step_s", "count"), [(86_400, 1800, 48), (3600, 75, 48), (60, 60, 1), (10, 60, 1)]
)
def test_the_time_is_divided_into_at_most_48_periods_of_at_least_a_minute(since_s, step_s, count):
    assert periods(5000.7, since_s) == QueryRange(5000, step_s, count)


def test_names_are_quoted_in_queries():
    text = queries('a"b', "c\\d", 60)["tokens"]
    assert '{namespace="a\\"b",deployment="c\\\\d"}[60s]' in text


def response(*series):
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": series}})


def test_values_are_placed_by_their_time():
    text = response(
        {"metric": {"position": "1"}, "values": [[800, "1.5"], [1000.0, "NaN"], [950, "7"]]}
    )
    (found,) = read_response(text, WANTED)
    assert found == RangeSeries({"position": "1"}, (1.5, None, None))


@pytest.mark.parametrize(
    "text",
    ["", "<html>", "[]", '{"status": "success"}', '{"data": {"result": [{"metric": {}}]}}',
     '{"data": {"result": [{"metric": {}, "values": [[1]]}]}}'],
)  # fmt: skip
def test_another_response_is_an_error_with_its_place(text):
    with pytest.raises(BadResult):
        read_response(text, WANTED)


def test_without_series_there_is_no_history():
    assert work_history("Prometheus", WANTED, NOTHING) == (None, None)


def test_draft_steps_are_weighted_with_decode_steps():
    def series(bucket, steps, *values):
        return RangeSeries({"batch_bucket": str(bucket), "num_steps": str(steps)}, values)

    steps = (
        series(1, 0, 10.0, None, 0.0), series(1, 4, 30.0, None, 5.0), series("x", 4, 1.0, 1.0, 1.0),
        series(8, 2, None, 1.0, None),
    )  # fmt: skip
    history, totals = work_history("Prometheus", WANTED, NOTHING | {"steps": steps})
    assert history is not None
    assert history.draft_steps == {1: (3.0, None, 4.0), 8: (None, 2.0, None)}
    assert history.mean_draft_steps == {1: 140.0 / 45.0, 8: 2.0}
    assert totals is not None
    assert totals.steps == {(1, 0): 10.0, (1, 4): 35.0, (8, 2): 1.0}
