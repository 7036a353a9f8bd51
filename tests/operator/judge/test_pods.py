"""Arms on pods of their own: one odd pod decides nothing."""

from dataclasses import replace

import pytest

from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.pods import judge_pods

GUARD = Guard(pod_spread=0.005)


@pytest.fixture
def pods(arm):
    """`pods(seed, costs)`: a pod for each cost."""
    return lambda seed, *costs: {
        f"pod-{seed}-{number}": replace(arm(4000, seed + number, cost), pods=1)
        for number, cost in enumerate(costs)
    }


@pytest.mark.parametrize(
    ("old", "new"), [((1.0, 1.0), (1.0, 1.15)), ((1.0, 1.15, 1.0), (1.0, 1.0, 1.0))]
)
def test_one_slow_pod_decides_nothing(pods, old, new):
    arms = pods(1, *old), pods(50, *new)
    judgement = judge_pods(*arms, GUARD, 1200.0)
    assert (judgement.verdict, judgement.reason) == (Verdict.CONTINUE, "RestsOnOnePod")
    assert "pod-" in judgement.message
    assert judge_pods(*arms, GUARD, 7200.0).verdict is Verdict.INCONCLUSIVE


def test_what_all_pods_show_is_decided(pods):
    assert judge_pods(pods(1, 1, 1), pods(50, 0.9, 0.9), GUARD, 1200.0).reason == "Faster"
    assert judge_pods(pods(1, 1, 1), pods(50, 1.1, 1.1), GUARD, 1200.0).reason == "Slower"


def test_one_pod_in_an_arm_decides_nothing_but_what_no_machine_explains(pods, arm, latencies):
    held = judge_pods(pods(1, 1), pods(50, 0.9), GUARD, 1200.0)
    assert (held.verdict, held.reason) == (Verdict.CONTINUE, "OnePod")
    # A broken draft breaks guard rails too; what is certain is said first.
    fast, slow = latencies(380, 20, 0, 0), latencies(100, 300, 0, 0)
    old = {"one": replace(arm(400, 2), inter_token=fast, pods=1)}
    new = replace(arm(400, 3), inter_token=slow, pods=1)
    assert judge_pods(old, {"one": new}, GUARD, 60.0).reason == "OnePod"
    broken = replace(arm(400, 3, 2.0, accept=1.0), inter_token=slow, pods=1)
    assert judge_pods(old, {"one": broken}, GUARD, 60.0).reason == "AcceptLengthFell"
    failing = replace(new, failed_requests=30.0)
    assert judge_pods(old, {"one": failing}, GUARD, 60.0).reason == "ErrorsRail"
    assert judge_pods(pods(1, 1), {}, GUARD, 60.0).verdict is Verdict.NO_DATA
