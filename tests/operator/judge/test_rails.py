"""Guard rails: tails, failures, restarts, self-tests; and how rarely equal arms break one."""

from dataclasses import replace

import numpy as np
import pytest

from specdecode_operator.judge.evidence import ArmEvidence, Latencies
from specdecode_operator.judge.failures import check_failures, log_e_value
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.pooled import pool
from specdecode_operator.judge.rails import check_rails, check_rails_by_pair
from specdecode_operator.judge.side_by_side import judge

GUARD = Guard()


def tails(of_arm, old, new, requests) -> tuple[ArmEvidence, ArmEvidence]:
    """Arms with these latencies of first tokens, and so many requests."""
    baseline, candidate = of_arm(requests, 1), of_arm(requests, 2)
    return replace(baseline, first_token=old), replace(candidate, first_token=new)


def named(rails, name):
    return next((rail for rail in rails if rail.name == name), None)


def test_the_tail_is_above_the_bound_nearest_to_the_95th_percentile(arm, latencies):
    old, new = latencies(800, 150, 40, 10), latencies(800, 100, 90, 10)
    rail = named(check_rails(tails(arm, old, new, 1000), GUARD), "FirstToken")
    assert (rail.baseline, rail.candidate, rail.limit) == pytest.approx((0.05, 0.10, 0.075))
    assert not rail.is_broken  # 2.5 points over among 1000: not at every look
    assert named(check_rails(tails(arm, old, new, 9000), GUARD), "FirstToken").is_broken
    assert not named(check_rails(tails(arm, new, old, 9000), GUARD), "FirstToken").is_broken
    judgement = judge(*tails(arm, old, new, 9000), GUARD, 60.0)
    assert (judgement.verdict, judgement.reason) == (Verdict.ROLL_BACK, "FirstTokenRail")


def test_no_tail_without_observations_or_with_other_buckets(arm, latencies):
    some, none = latencies(10, 5, 1, 0), Latencies()
    for old, new in ((none, none), (some, none), (latencies(9, 0, 0, 0), some)):
        assert named(check_rails(tails(arm, old, new, 90), GUARD), "FirstToken") is None
    with pytest.raises(ValueError, match="the same"):
        check_rails(tails(arm, some, Latencies((1.0,), (5, 5)), 90), GUARD)


def test_tails_by_pair_need_pairs_that_agree(arm, latencies):
    worse = tails(arm, latencies(80, 15, 4, 1), latencies(70, 10, 15, 5), 90)
    better = worse[::-1]

    def check(pairs):
        compared = pool(pair[0] for pair in pairs), pool(pair[1] for pair in pairs)
        return named(check_rails_by_pair(compared, compared, pairs, GUARD), "FirstToken")

    assert check([worse] * 20).is_broken
    assert not check([worse]).is_broken
    assert not check([worse, better] * 10).is_broken


def test_more_preempted_requests_break_the_rail_of_memory(arm):
    old, new = arm(3000, 1), arm(3000, 2)
    few, many = replace(new, preempted_requests=40.0), replace(new, preempted_requests=300.0)
    assert named(check_rails((old, few), GUARD), "Memory").is_broken is False
    assert judge(old, many, GUARD, 60.0).reason == "MemoryRail"
    pairs = [(replace(old, preempted_requests=9.0), many)] * 20
    rails = check_rails_by_pair(pairs[0], pairs[0], pairs, GUARD)
    assert named(rails, "Memory").is_broken


def test_an_e_value_by_hand():
    # Even arms, one failure of the candidate: likely / exposure is 2 odds / (1 + odds).
    expected = np.mean([2 * odds / (1 + odds) for odds in (1.5, 2, 4, 8, 16)])
    assert np.exp(log_e_value(0, 1, 0.5)) == pytest.approx(expected)
    assert log_e_value(0, 5, 0.0) == log_e_value(5, 0, 1.0) == 0.0
    assert log_e_value(1e6, 1e6, 0.5) < 0 < log_e_value(0, 1e6, 0.5)


@pytest.mark.parametrize("exposure", [0.5, 0.1, 0.9])
def test_equal_failure_rates_rarely_look_unequal_at_any_time(exposure):
    rng = np.random.default_rng(3)
    alpha, wrong = 0.05, 0
    for _ in range(800):
        mine = (rng.random(120) < exposure).cumsum()
        wrong += any(
            log_e_value(total - new, new, exposure) >= -np.log(alpha)
            for total, new in enumerate(mine.tolist(), start=1)
        )
    assert wrong / 800 <= alpha


def test_fourteen_failures_against_none_are_enough(arm):
    old, new = arm(400, 1), replace(arm(400, 2), failed_requests=14.0)
    judgement = judge(old, new, GUARD, 60.0)
    assert (judgement.verdict, judgement.reason) == (Verdict.ROLL_BACK, "ErrorsRail")
    assert judge(new, old, GUARD, 60.0).verdict is Verdict.CONTINUE


def test_a_candidate_that_only_fails_is_caught_without_any_request(arm):
    old = arm(60, 1)
    new = replace(arm(0, 2), failed_requests=40.0)
    assert judge(old, new, GUARD, 30.0).reason == "ErrorsRail"


def test_one_crash_explains_what_was_in_flight_and_three_are_too_many(arm):
    old, new = arm(900, 1), arm(900, 2)
    once = replace(new, restarts=1.0, failed_requests=50.0)
    assert judge(old, once, GUARD, 60.0).verdict is Verdict.CONTINUE
    assert judge(once, new, GUARD, 60.0).verdict is Verdict.CONTINUE
    thrice = replace(new, restarts=3.0)
    assert judge(old, thrice, GUARD, 60.0).reason == "RestartsRail"
    # More pods may restart more often.
    rails = check_failures(replace(old, restarts=1.0), replace(thrice, pods=4), GUARD, 0.01)
    assert not any(rail.is_broken for rail in rails)


def test_a_failed_self_test_is_enough(arm):
    wrong = replace(arm(50, 2), self_test_failures=1.0)
    judgement = judge(arm(50, 1), wrong, GUARD, 30.0)
    assert (judgement.verdict, judgement.reason) == (Verdict.ROLL_BACK, "SelfTestRail")
    assert judge(wrong, wrong, GUARD, 30.0).verdict is Verdict.CONTINUE
