"""Verdicts over arms side by side: each reason, and what must hold whatever is counted."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_operator.judge.blocks import Block, judge_blocks
from specdecode_operator.judge.evidence import ArmEvidence, RequestSums, Role, Stratum
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.side_by_side import judge

GUARD = Guard(pod_spread=0.0)
LATE = 1200.0
NUMBERS = st.floats(1e-3, 1e6)


def scale(arm: ArmEvidence, factor: float) -> ArmEvidence:
    """The same requests, `factor` times each."""
    strata = {
        at: RequestSums(*(factor * getattr(sums, name) for name in RequestSums.__slots__))
        for at, sums in arm.strata.items()
    }
    return replace(arm, strata=strata)


@pytest.mark.parametrize(
    ("cost", "verdict", "reason"),
    [
        (0.9, Verdict.PROMOTE, "Faster"),
        (1.1, Verdict.ROLL_BACK, "Slower"),
        (1.0, Verdict.INCONCLUSIVE, "GainTooSmall"),
    ],
)
def test_what_many_requests_show(arm, cost, verdict, reason):
    judgement = judge(arm(9000, 1), arm(9000, 2, cost), GUARD, LATE)
    assert (judgement.verdict, judgement.reason) == (verdict, reason)
    assert judgement.gain is not None
    assert judgement.gain.lower < 1 - cost < judgement.gain.upper
    assert judgement.baseline_requests == judgement.candidate_requests == 9000
    assert judgement.strata[0].share == judgement.coverage == 1.0


def test_a_persons_own_edit_needs_no_gain(arm):
    guard = replace(GUARD, aim=Aim.NO_LOSS)
    arms = arm(20000, 1), arm(20000, 2)
    assert judge(*arms, guard, LATE).reason == "NotSlower"
    assert judge(*arms, GUARD, LATE).verdict is Verdict.INCONCLUSIVE
    slower = judge(arm(20000, 1), arm(20000, 2, 1.05), guard, LATE)
    assert (slower.verdict, slower.reason) == (Verdict.ROLL_BACK, "Slower")


def test_no_data_holds_and_is_never_promoted(arm):
    for arms in ((arm(0, 1), arm(0, 2)), (arm(900, 1), arm(0, 2)), (arm(0, 1), arm(900, 2))):
        judgement = judge(*arms, GUARD, LATE)
        assert (judgement.verdict, judgement.reason) == (Verdict.NO_DATA, "NoRequests")
        assert judge(*arms, GUARD, 7200.0).verdict is Verdict.INCONCLUSIVE


def test_floors_hold_back_and_say_which(arm, sums):
    few = judge(arm(900, 1), arm(150, 2, 0.5), GUARD, LATE)
    assert (few.verdict, few.reason) == (Verdict.CONTINUE, "TooFewRequests")
    assert "150 of 200" in few.message
    early = judge(arm(9000, 1), arm(9000, 2, 0.8), GUARD, 599.0)
    assert (early.verdict, early.reason) == (Verdict.CONTINUE, "TooSoon")
    # A loss need not wait for the clock.
    assert judge(arm(9000, 1), arm(9000, 2, 1.2), GUARD, 30.0).verdict is Verdict.ROLL_BACK
    alone = Stratum(32, "greedy", "free", "long")
    wide = arm(900, 1)
    wide = replace(wide, strata={**wide.strata, alone: sums([(30.0, 10.0, 9.0)] * 100)})
    thin = judge(wide, arm(900, 2, 0.8), GUARD, LATE)
    assert (thin.verdict, thin.reason) == (Verdict.CONTINUE, "TooLittleCovered")


def test_the_end_keeps_the_old(arm):
    judgement = judge(arm(300, 1), arm(300, 2), GUARD, 7200.0)
    assert (judgement.verdict, judgement.reason) == (Verdict.INCONCLUSIVE, "OutOfTime")


def test_what_equal_pods_differ_by_is_never_decided_by_requests(arm):
    arms = arm(9000, 1), arm(9000, 2, 0.96)
    assert judge(*arms, GUARD, LATE).verdict is Verdict.PROMOTE
    wide = judge(*arms, replace(GUARD, pod_spread=0.02), LATE)
    assert wide.verdict is Verdict.CONTINUE
    old, new = (replace(one, pods=40) for one in arms)
    assert judge(old, new, replace(GUARD, pod_spread=0.02), LATE).verdict is Verdict.PROMOTE


def test_unequal_arms_are_as_wide_as_the_smaller_one_makes_them(arm):
    even = judge(arm(2000, 1), arm(2000, 2), GUARD, LATE).gain
    uneven = judge(arm(3600, 1), arm(400, 2), GUARD, LATE).gain
    assert even is not None
    assert uneven is not None
    assert uneven.upper - uneven.lower > 1.3 * (even.upper - even.lower)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), min_size=2, max_size=20), st.integers(1, 5000)
)
def test_equal_data_is_never_promoted_nor_rolled_back(requests, times):
    from_requests = RequestSums()
    for tokens, rounds, seconds in requests:
        from_requests = from_requests + RequestSums(
            times,
            times * tokens,
            times * rounds,
            times * seconds,
            times * tokens**2,
            times * rounds**2,
            times * seconds**2,
            times * tokens * rounds,
            times * seconds * tokens,
        )
    one = ArmEvidence({Stratum(1, "greedy", "free", "short"): from_requests})
    judgement = judge(one, one, GUARD, LATE)
    assert judgement.verdict not in (Verdict.PROMOTE, Verdict.ROLL_BACK)
    if judgement.gain is not None:
        assert judgement.gain.lower < judgement.gain.estimate == 0.0 < judgement.gain.upper


@settings(max_examples=60, deadline=None)
@given(cost=st.floats(0.5, 2.0), count=st.integers(20, 300), seed=st.integers(0, 9))
def test_swapped_arms_say_the_opposite(arm, cost, count, seed):
    guard = replace(GUARD, alpha=0.02, promote_alpha=0.01)  # both sides the same error
    one, other = arm(count, seed), arm(count + 30, seed + 100, cost)
    forth, back = judge(one, other, guard, LATE).gain, judge(other, one, guard, LATE).gain
    assert forth is not None
    assert back is not None
    assert (1 - forth.estimate) * (1 - back.estimate) == pytest.approx(1.0)
    assert (1 - forth.lower) * (1 - back.upper) == pytest.approx(1.0)


@settings(max_examples=60, deadline=None)
@given(count=st.integers(25, 400), seed=st.integers(0, 9), factor=st.floats(1.1, 50.0))
def test_more_of_the_same_requests_narrow_the_interval(arm, count, seed, factor):
    old, new = arm(count, seed), arm(count, seed + 100)
    less = judge(old, new, GUARD, LATE).gain
    more = judge(scale(old, factor), scale(new, factor), GUARD, LATE).gain
    assert less is not None
    assert more is not None
    assert more.upper - more.lower < less.upper - less.lower


def test_the_record_has_finite_numbers_however_little_is_known(arm, sums):
    at = Stratum(1, "greedy", "free", "short")
    wild = [(1e-3, 1.0, 1e6), (1e6, 1.0, 1e-3)] * 10
    judgement = judge(ArmEvidence({at: sums(wild)}), ArmEvidence({at: sums(wild)}), GUARD, LATE)
    assert json.loads(json.dumps(asdict(judgement), allow_nan=False))["verdict"] == "Continue"
    few = [Block(pair, "a", role, arm(50, pair)) for pair in range(4) for role in Role]
    judgement = judge_blocks(few, GUARD, LATE)
    assert judgement.gain is None
    json.dumps(asdict(judgement), allow_nan=False)
