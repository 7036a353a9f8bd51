"""`status.activity`: half hours of work from readings of engines."""

import json
import random
from typing import Any

from specdecode_api.metrics import BATCH_BUCKETS
from specdecode_api.v1alpha1.activity import MAX_PERIODS, Activity
from specdecode_operator.fleet import BucketTotals, Reading
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.objects.observed import Key
from specdecode_operator.status.activity import (
    PERIOD_S,
    ActivityLog,
    after_look,
    end_of_period,
    extended,
    measured,
)

UID = "uid-1"
START_S = end_of_period(UID, 1.8e9)
"""Begin of a half hour."""


def reading(pod, steps, num_steps=3, batch=8, tokens_per_step=2.5, start_s=0.0):
    """An engine that ran `steps` decode steps of `batch` requests."""
    cells = {(batch, num_steps): BucketTotals(steps, steps * batch, steps / 100)}
    return Reading(
        pod,
        start_s,
        ArmKey("c", "t"),
        {},
        cells,
        emitted_tokens=steps * batch * tokens_per_step,
        request_steps=steps * batch,
    )


def watched(looks):
    """The window after looks of (seconds, readings)."""
    window = None
    for at_s, readings in looks:
        window = after_look(window, UID, readings, START_S + at_s)
    return window


def shown_after(previous, window):
    """What is shown, after at least one complete half hour."""
    found = extended(previous, window)
    assert found is not None
    return found


def test_a_half_hour_is_the_difference_of_its_readings():
    window = watched(
        [
            (10, [reading("a", 1000), reading("b", 50, num_steps=1)]),
            (910, [reading("a", 1500), reading("b", 50, num_steps=1)]),
            (1810, [reading("a", 1900), reading("b", 350, num_steps=1)]),
        ]
    )
    found = shown_after(None, window)
    assert found == {
        "until": found["until"],
        "tokensPerSecond": [round((900 + 300) * 8 * 2.5 / 1800)],
        "acceptLengthHundredths": [250],
        "draftSteps": [{"from": 8, "tenths": [round(10 * (900 * 3 + 300 * 1) / 1200)]}],
    }
    assert extended(found, window) == found, "a half hour is added once"


def test_nothing_is_shown_before_a_half_hour_is_complete():
    window = watched([(10, [reading("a", 1)]), (1700, [reading("a", 2)])])
    assert extended(None, window) is None
    assert extended({"until": "x"}, None) == {"until": "x"}


def test_a_pod_that_was_read_later_counts_by_its_own_time():
    window = watched([(0, []), (900, [reading("a", 0)]), (1000, [reading("a", 100)]), (1800, [])])
    assert shown_after(None, window)["tokensPerSecond"] == [round(100 * 8 * 2.5 / 100)]


def test_a_restarted_engine_is_left_out():
    window = watched(
        [
            (0, [reading("a", 1000), reading("b", 0)]),
            (1800, [reading("a", 30, start_s=9.0), reading("b", 900)]),
        ]
    )
    assert shown_after(None, window)["tokensPerSecond"] == [10]


def test_half_hours_without_an_operator_have_no_work():
    first = shown_after(None, watched([(0, [reading("a", 0)]), (1800, [reading("a", 900)])]))
    later = 5 * PERIOD_S
    window = watched([(later, [reading("a", 0)]), (later + 1800, [reading("a", 1800)])])
    found = shown_after(first, window)
    assert found["tokensPerSecond"] == [10, 0, 0, 0, 0, 20]
    assert found["acceptLengthHundredths"] == [250, 0, 0, 0, 0, 250]
    assert found["draftSteps"] == [{"from": 8, "tenths": [30, -1, -1, -1, -1, 30]}]


def test_a_status_that_is_ahead_stays():
    """Another leader wrote it, or the clock was set back."""
    window = watched([(0, [reading("a", 0)]), (1800, [reading("a", 900)])])
    ahead = extended(None, watched([(3600, [reading("a", 0)]), (5400, [reading("a", 9)])]))
    assert extended(ahead, window) == ahead


def test_a_day_of_every_bucket_fits_into_four_kibibytes():
    draw, window = random.Random(1), None
    shown: dict[str, Any] = {}
    for period in range(60):
        steps = [10**6 * period * (1 + place) for place in range(len(BATCH_BUCKETS))]
        cells = {
            (bucket, 10): BucketTotals(number, number * bucket, 1.0)
            for bucket, number in zip(BATCH_BUCKETS, steps, strict=True)
        }
        one = Reading(
            "a", 0.0, ArmKey("c", "t"), {}, cells,
            emitted_tokens=10**9 * period * draw.uniform(1, 1.01),
            request_steps=sum(each.request_steps for each in cells.values()),
        )  # fmt: skip
        window = after_look(window, UID, [one], START_S + period * PERIOD_S)
        shown = extended(shown or None, window) or {}
    assert len(shown["tokensPerSecond"]) == MAX_PERIODS
    assert len(shown["draftSteps"]) == len(BATCH_BUCKETS)
    assert len(json.dumps(shown, separators=(",", ":"))) <= 4096
    assert Activity.from_resource(shown)


def test_the_latest_half_hour_is_measured_and_at_first_the_present_one():
    looks = [(10, [reading("a", 0)]), (910, [reading("a", 450)]), (1810, [reading("a", 900)])]
    assert measured(None, watched(looks[:1])) is None, "an interval needs two readings"
    first = measured(None, watched(looks[:2]))
    assert first == {"acceptLength": "2.50", "tokensPerSecond": "10"}
    shown = {"acceptLength": "1.10", "tokensPerSecond": "7"}
    assert measured(shown, watched(looks[:2])) == shown, "written once per half hour"
    assert measured(shown, watched(looks)) == first


def test_an_idle_half_hour_keeps_the_accept_length():
    idle = watched([(0, [reading("a", 5)]), (1800, [reading("a", 5)])])
    assert measured(None, idle) is None
    shown = {"acceptLength": "2.10", "tokensPerSecond": "7"}
    assert measured(shown, idle) == {"acceptLength": "2.10", "tokensPerSecond": "0"}


def test_half_hours_of_resources_end_at_different_times():
    ends = {end_of_period(f"uid-{number}", 1.8e9) for number in range(100)}
    assert len(ends) > 90
    assert all(1.8e9 < end_s <= 1.8e9 + PERIOD_S for end_s in ends)


def test_the_log_keeps_resources_apart_and_forgets_them():
    log, one, other = ActivityLog(), Key("n", "one"), Key("n", "other")
    for at_s, steps in ((0, 0), (1800, 900)):
        log.add(one, UID, [reading("a", steps)], START_S + at_s)
    found = log.extended(one, None)
    assert found is not None
    assert found["tokensPerSecond"] == [10]
    assert log.extended(other, None) is None
    log.forget(one)
    assert log.extended(one, None) is None
