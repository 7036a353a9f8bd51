"""Arms on pods of their own, where one pod may be slow: a verdict must stand without any of them.

Pods of two Deployments cannot exchange their configurations, so what a pod is cannot be told from
what it runs. If the verdict hangs on a single pod, it is that pod's; then nothing is decided.
Where tables can be exchanged in place, arms that take turns (`blocks`) decide all the same.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from specdecode_operator.judge.evidence import ArmEvidence
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Judgement, Verdict
from specdecode_operator.judge.pooled import pool
from specdecode_operator.judge.side_by_side import judge

Pods = Mapping[str, ArmEvidence]

# No slow machine explains these, and rolling back is right whatever does.
CERTAIN = ("AcceptLengthFell", "SelfTestRail", "RestartsRail", "ErrorsRail")


def judge_pods(baseline: Pods, candidate: Pods, guard: Guard, elapsed_s: float) -> Judgement:
    """Judge arms pod by pod; with one pod in an arm only what is `CERTAIN` is ever decided."""
    judgement = judge(pool(baseline.values()), pool(candidate.values()), guard, elapsed_s)
    if judgement.verdict not in (Verdict.PROMOTE, Verdict.ROLL_BACK):
        return judgement
    if judgement.reason in CERTAIN:
        return judgement
    if min(len(baseline), len(candidate)) < 2:
        return _withhold(judgement, guard, "OnePod", "an arm has one pod, which may be the cause")
    for left_out, old, new in _without_each(baseline, candidate):
        if judge(old, new, guard, elapsed_s).verdict is not judgement.verdict:
            message = f"{judgement.message}, but not without pod {left_out}"
            return _withhold(judgement, guard, "RestsOnOnePod", message)
    return judgement


def _without_each(
    baseline: Pods, candidate: Pods
) -> Iterator[tuple[str, ArmEvidence, ArmEvidence]]:
    """Both arms without one pod, for each pod."""
    for pods in (baseline, candidate):
        for name in pods:
            old, new = (
                pool(evidence for pod, evidence in arm.items() if not (arm is pods and pod == name))
                for arm in (baseline, candidate)
            )
            yield name, old, new


def _withhold(judgement: Judgement, guard: Guard, reason: str, message: str) -> Judgement:
    is_over = judgement.elapsed_s >= guard.max_duration_s
    verdict = Verdict.INCONCLUSIVE if is_over else Verdict.CONTINUE
    return replace(judgement, verdict=verdict, reason=reason, message=message)
