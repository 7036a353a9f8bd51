"""DecodeRates of the last minute from totals."""

from specdecode_api.metrics import core
from specdecode_engine.stats.recent_rates import DecodeRates, RecentRates
from specdecode_engine.stats.snapshot import CoreSnapshot


def totals(tokens: float, steps: float, drafted: float, accepted: float) -> CoreSnapshot:
    each = (core.EMITTED_TOKENS, core.REQUEST_STEPS, core.DRAFTED_TOKENS, core.ACCEPTED_TOKENS)
    values = (tokens, steps, drafted, accepted)
    return CoreSnapshot({spec: {(): value} for spec, value in zip(each, values, strict=True)})


def test_without_a_decode_step_there_are_no_rates() -> None:
    rates = RecentRates()
    assert rates.rates() == DecodeRates(0.0)
    for at_s in (1.0, 3.0):
        rates.add(at_s, totals(0, 0, 0, 0))
    assert rates.rates() == DecodeRates(2.0)


def test_rates_are_of_the_last_minute() -> None:
    rates = RecentRates()
    for at_s in range(0, 301, 2):
        fast = max(at_s - 200, 0)
        rates.add(float(at_s), totals(at_s + 9 * fast, at_s + fast, 3 * at_s, at_s))
    assert rates.rates() == DecodeRates(60.0, 10.0, 5.0, 1 / 3)


def test_steps_without_a_draft_have_no_share() -> None:
    rates = RecentRates()
    rates.add(0.0, totals(0, 0, 0, 0))
    rates.add(10.0, totals(20, 20, 0, 0))
    assert rates.rates() == DecodeRates(10.0, 2.0, 1.0, None)


def test_an_engine_that_starts_again_starts_at_zero() -> None:
    rates = RecentRates()
    rates.add(0.0, totals(500, 100, 300, 200))
    rates.add(2.0, totals(0, 0, 0, 0))
    rates.add(4.0, totals(10, 5, 10, 5))
    assert rates.rates() == DecodeRates(2.0, 5.0, 2.0, 0.5)
