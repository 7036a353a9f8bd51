"""Arms that take turns: what cancels, what counts as a pair, and each verdict."""

import random
from dataclasses import replace

import pytest

from specdecode_operator.judge.blocks import Block, complete_pairs, judge_blocks, schedule
from specdecode_operator.judge.evidence import ArmEvidence, Role
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judgement import Verdict

GUARD = Guard()
OLD, NEW = Role.BASELINE, Role.CANDIDATE


@pytest.fixture
def take_turns(arm):
    """`take_turns(pairs, cost, pods={name: speed})`: blocks of 60 requests a pod."""

    def build(pairs, cost=1.0, pods=None, drift=0.0, accept=1.0, seed=1):
        draw = random.Random(seed)
        blocks = []
        for pair, order in enumerate(schedule(seed, pairs)):
            for place, (pod, speed) in enumerate((pods or {"a": 1.0, "b": 1.0}).items()):
                for half, role in enumerate(order[::-1] if place % 2 else order):
                    seconds = speed * (1.0 + drift * half)
                    if role is NEW:
                        seconds *= cost
                    tokens = 3.0 * accept if role is NEW else 3.0
                    evidence = arm(60, draw.randrange(10**9), seconds, accept=tokens, pods=1)
                    blocks.append(Block(pair, pod, role, evidence))
        return blocks

    return build


def test_the_schedule_is_random_balanced_and_repeatable():
    orders = schedule(3, 400)
    assert orders == schedule(3, 400) != schedule(4, 400)
    assert set(orders) == {(OLD, NEW), (NEW, OLD)}
    for start in range(0, 400, 4):
        assert orders[start : start + 4].count((OLD, NEW)) == 2
    assert len({orders[at : at + 4] for at in range(0, 400, 4)}) == 6  # every order of four
    assert all(schedule(3, pairs) == orders[:pairs] for pairs in range(40))  # asked pair by pair
    assert schedule(1, 0) == ()
    assert len(schedule(1, 5)) == 5


@pytest.mark.parametrize(
    ("cost", "verdict", "reason"),
    [
        (0.9, Verdict.PROMOTE, "Faster"),
        (1.08, Verdict.ROLL_BACK, "Slower"),
        (1.4, Verdict.ROLL_BACK, "HeavyLoss"),
    ],
)
def test_what_pairs_show(take_turns, cost, verdict, reason):
    judgement = judge_blocks(take_turns(30, cost), GUARD, 3600.0)
    assert (judgement.verdict, judgement.reason) == (verdict, reason)
    assert judgement.gain is not None
    assert judgement.gain.lower < 1 - cost < judgement.gain.upper
    assert judgement.pairs == 30
    assert judgement.baseline_requests == judgement.candidate_requests == 30 * 2 * 60


def test_a_slow_pod_and_a_drift_of_the_load_cancel(take_turns):
    even = judge_blocks(take_turns(24), GUARD, 3600.0)
    assert even.gain is not None
    odd = judge_blocks(take_turns(24, pods={"a": 1.0, "b": 1.5}, drift=0.2), GUARD, 3600.0)
    assert odd.gain is not None
    assert odd.gain.estimate == pytest.approx(even.gain.estimate, abs=0.006)
    assert odd.verdict not in (Verdict.PROMOTE, Verdict.ROLL_BACK)


def test_a_broken_draft_needs_no_pair(take_turns):
    first = [
        replace(block, is_finished=False)
        for block in take_turns(1, 2.3, accept=1.0 / 3.0)
        if (block.pod == "a") is (block.role is NEW)
    ]
    judgement = judge_blocks(first, GUARD, 40.0)
    assert (judgement.verdict, judgement.reason) == (Verdict.ROLL_BACK, "AcceptLengthFell")
    assert judgement.pairs == 0


def test_only_pods_that_finished_both_roles_make_a_pair(arm):
    blocks = [
        Block(0, "a", OLD, arm(50, 1)),
        Block(0, "a", NEW, arm(51, 2)),
        Block(0, "gone", OLD, arm(99, 3)),
        Block(1, "a", NEW, arm(50, 4)),
        Block(1, "a", OLD, arm(20, 5), is_finished=False),
    ]
    ((old, new),), others = complete_pairs(blocks)
    assert others == blocks[2:]
    assert (old.answered_requests, new.answered_requests) == (50, 51)
    assert judge_blocks(blocks, GUARD, 60.0).baseline_requests == 50 + 99 + 20


def test_floors_and_the_end(take_turns):
    few = judge_blocks(take_turns(4, 0.8), GUARD, 700.0)
    assert (few.verdict, few.reason) == (Verdict.CONTINUE, "TooFewPairs")
    assert "4 of 6" in few.message
    assert judge_blocks([], GUARD, 700.0).verdict is Verdict.NO_DATA
    assert judge_blocks([], GUARD, 7200.0).verdict is Verdict.INCONCLUSIVE
    empty = [Block(0, "a", role, ArmEvidence()) for role in Role]
    assert judge_blocks(empty, GUARD, 700.0).verdict is Verdict.NO_DATA
    assert judge_blocks(take_turns(8), GUARD, 7200.0).verdict is Verdict.INCONCLUSIVE


def test_a_persons_own_edit_needs_no_gain(take_turns):
    guard = Guard(aim=Aim.NO_LOSS, margin=0.04)
    blocks = take_turns(40)
    assert judge_blocks(blocks, guard, 3600.0).reason == "NotSlower"
    assert judge_blocks(blocks, GUARD, 3600.0).verdict is not Verdict.PROMOTE


def test_equal_blocks_are_never_promoted(arm):
    same = arm(100, 1)
    blocks = [Block(pair, "a", role, same) for pair in range(60) for role in Role]
    judgement = judge_blocks(blocks, GUARD, 3600.0)
    assert judgement.verdict is Verdict.INCONCLUSIVE
    assert judgement.reason == "GainTooSmall"
    assert judgement.gain is not None
    assert judgement.gain.estimate == 0.0


def test_failures_count_where_they_fall(take_turns):
    blocks = [
        replace(block, evidence=replace(block.evidence, failed_requests=3.0))
        if block.role is NEW
        else block
        for block in take_turns(3)
    ]
    assert judge_blocks(blocks, GUARD, 400.0).reason == "ErrorsRail"
