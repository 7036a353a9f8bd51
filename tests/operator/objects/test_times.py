"""Times in objects: valid ones with their zone, and nothing for all others."""

from datetime import UTC, datetime

import pytest

from specdecode_operator.objects.times import seconds_since, time_of

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["2026-11-21T12:00:00Z", "2026-11-21T13:00:00.000000+01:00", "2026-11-21T12:00:00"]
)
def test_a_time_has_a_zone(text):
    assert time_of({"at": text}, "at") == AT


@pytest.mark.parametrize("part", [{}, {"at": None}, {"at": ""}, {"at": "soon"}, {"at": 7}])
def test_what_is_no_time_is_none(part):
    assert time_of(part, "at") is None
    assert seconds_since(part, "at", AT) == 0.0


def test_seconds_are_not_negative_where_clocks_differ():
    assert seconds_since({"at": "2026-11-21T11:59:30Z"}, "at", AT) == 30.0
    assert seconds_since({"at": "2026-11-21T12:00:30Z"}, "at", AT) == 0.0
