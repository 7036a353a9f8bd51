"""Two arms side by side: promote, roll back, go on, or give up."""

from specdecode_operator.judge.evidence import ArmEvidence
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Judgement, Verdict


def judge(
    baseline: ArmEvidence, candidate: ArmEvidence, guard: Guard, elapsed_s: float
) -> Judgement:
    """Judge arms that ran at the same time on pods of their own; may be asked at any moment."""
    known = min(_requests(baseline), _requests(candidate))
    if known == 0:
        return Judgement(Verdict.NO_DATA, "NoRequests", "an arm has no requests yet")
    return Judgement(Verdict.CONTINUE, "TooFewRequests", "go on", elapsed_s=elapsed_s)


def _requests(arm: ArmEvidence) -> float:
    return sum(sums.requests for sums in arm.strata.values())
