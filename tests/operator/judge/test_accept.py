"""The early alarm: a broken draft at once, a shallower table never."""

import pytest

from specdecode_operator.judge.accept import FEWEST, check_accept
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.side_by_side import judge

GUARD = Guard()


@pytest.mark.parametrize("seed", range(20))
def test_a_broken_draft_is_caught_within_forty_requests(arm, seed):
    judgement = judge(arm(40, seed), arm(40, seed + 100, 2.3, accept=1.0), GUARD, 20.0)
    assert (judgement.verdict, judgement.reason) == (Verdict.ROLL_BACK, "AcceptLengthFell")
    assert judgement.accept is not None
    # A round brings a token whatever is accepted, so the accept length is a little above 1.
    assert -0.75 < judgement.accept.lower < judgement.accept.upper < -0.4


@pytest.mark.parametrize("seed", range(20))
def test_a_shallower_table_that_is_faster_raises_no_alarm(arm, seed):
    for count in (20, 40, 100, 400):
        judgement = judge(arm(count, seed), arm(count, seed + 100, 0.95, accept=1.5), GUARD, 20.0)
        assert judgement.verdict is not Verdict.ROLL_BACK
    assert judgement.accept is not None
    assert judgement.accept.upper < -0.2  # it did fall


def test_a_slower_candidate_that_accepts_as_much_is_no_broken_draft(arm):
    alarm = check_accept(arm(100, 1), arm(100, 2, 3.0), GUARD, 0.003)
    assert alarm.accept is not None
    assert alarm.reason is None


def test_nothing_is_said_of_a_handful_of_requests(arm):
    few = int(FEWEST) - 1
    alarm = check_accept(arm(few, 1), arm(few, 2, 3.0, accept=1.0), GUARD, 0.003)
    assert alarm.accept is None
    assert alarm.reason is None
