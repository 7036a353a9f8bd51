"""Circuit breaking and slow start, with given times."""

from specdecode_router.routing.breaker import (
    FAILURES,
    MAX_OPEN_SECONDS,
    Breaker,
    slow_start_weight,
)


def opened() -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES):
        assert breaker.allows(10)
        breaker.fail(10)
    return breaker


def test_failures_in_a_row_open_the_circuit():
    breaker = Breaker()
    breaker.fail(1)
    breaker.fail(2)
    breaker.succeed()
    breaker.fail(3)
    breaker.fail(4)
    assert breaker.allows(4)
    breaker.fail(5)
    assert breaker.is_open
    assert not breaker.allows(5.9)


def test_one_request_is_let_through_after_the_time():
    breaker = opened()
    assert not breaker.allows(10.9)
    assert breaker.allows(11)
    breaker.begin(11)
    assert not breaker.allows(11.5)
    breaker.succeed()
    assert breaker.allows(11.5)


def test_a_failed_probe_opens_it_for_twice_the_time_up_to_a_limit():
    breaker, now_s = opened(), 10.0
    times = []
    for _ in range(8):
        now_s = breaker.open_until_s
        times.append(breaker.open_seconds)
        breaker.begin(now_s)
        breaker.fail(now_s)
    assert times == [1, 2, 4, 8, 16, 30, 30, MAX_OPEN_SECONDS]


def test_a_probe_without_end_does_not_keep_the_circuit_open():
    breaker = opened()
    breaker.begin(11)
    assert not breaker.allows(11.9)
    assert breaker.allows(12)


def test_an_engine_starts_slowly():
    assert slow_start_weight(0) == 0.1
    assert slow_start_weight(10) == 0.5
    assert slow_start_weight(20) == slow_start_weight(float("inf")) == 1
