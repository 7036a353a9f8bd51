"""Stalled streams: five seconds, or twenty median steps of the stream itself."""

from specdecode_router.routing.stalls import StepTimes


def stepped(step_s: float, count: int) -> StepTimes:
    times = StepTimes(0.0)
    for number in range(1, count + 1):
        times.step(number * step_s)
    return times


def test_a_fast_stream_stalls_after_five_seconds():
    times = stepped(0.02, 50)
    assert not times.is_stalled(1.0 + 5.0)
    assert times.is_stalled(1.0 + 5.01)


def test_a_slow_stream_has_twenty_of_its_median_steps():
    times = stepped(2.0, 10)
    assert not times.is_stalled(20 + 39.9)
    assert times.is_stalled(20 + 40.1)


def test_one_long_step_does_not_change_the_median():
    times = stepped(0.1, 20)
    times.step(2.0 + 30.0)
    assert times.limit_s() == 5.0


def test_heartbeats_are_no_steps():
    times = StepTimes(0.0)
    for second in range(1, 60):
        times.beat(float(second))
    assert not times.is_stalled(63.9)
    assert times.is_stalled(64.1)
    assert times.limit_s() == 5.0


def test_old_steps_are_forgotten():
    times = stepped(3.0, 40)
    for number in range(40):
        times.step(120.0 + 0.01 * (number + 1))
    assert times.limit_s() == 5.0
