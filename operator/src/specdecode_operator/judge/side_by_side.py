"""Two arms side by side: promote, roll back, go on, or give up."""

import math
from statistics import NormalDist

from specdecode_operator.judge.accept import check_accept
from specdecode_operator.judge.confidence import radius, tuned_information
from specdecode_operator.judge.decision import Findings, conclude
from specdecode_operator.judge.evidence import ArmEvidence
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judgement import Interval, Judgement, StratumEffect
from specdecode_operator.judge.pooled import request_count
from specdecode_operator.judge.rails import check_rails
from specdecode_operator.judge.ratio import LogRatio, seconds_per_token
from specdecode_operator.judge.stratified import Contrast, contrast

FARTHEST = 20.0  # of a logarithm; bounds beyond it say nothing anyway


def judge(
    baseline: ArmEvidence, candidate: ArmEvidence, guard: Guard, elapsed_s: float
) -> Judgement:
    """Judge arms that ran at the same time on pods of their own; may be asked at any moment.

    What equal pods differ by (`guard.pod_spread`) cannot be told from what the arms differ by, so
    it widens the bounds for good. A pod that is much slower than its peers still misleads this
    judge; where tables can be exchanged in place, let the arms take turns (`blocks`).
    """
    time = contrast(baseline, candidate, seconds_per_token, guard.min_stratum_requests)
    alarm = check_accept(baseline, candidate, guard, guard.alarm_alpha)
    pods = 1.0 / max(1, baseline.pods) + 1.0 / max(1, candidate.pods)
    gain = None if time.log_ratio is None else _gain(time.log_ratio, guard, math.sqrt(pods))
    counts = request_count(baseline), request_count(candidate)
    found = Findings(
        *counts,
        gain=gain,
        accept=alarm.accept,
        alarm=alarm.reason,
        rails=check_rails((baseline, candidate), guard),
        unmet=unmet_floors(counts, time.coverage, guard, elapsed_s),
        strata=stratum_effects(time),
        coverage=time.coverage,
        pairs=0,
        elapsed_s=elapsed_s,
    )
    return conclude(found, guard)


def unmet_floors(
    counts: tuple[float, float], coverage: float, guard: Guard, elapsed_s: float
) -> tuple[tuple[str, str], ...]:
    """Reason and sentence of what is still missing; `TooSoon` holds back promotions only."""
    unmet = []
    if min(counts) < guard.min_requests:
        message = f"{min(counts):.0f} of {guard.min_requests} requests in the smaller arm"
        unmet.append(("TooFewRequests", message))
    if coverage < guard.min_coverage:
        message = (
            f"strata with {guard.min_stratum_requests} requests in each arm hold {coverage:.0%} of"
            f" the work, {guard.min_coverage:.0%} are needed"
        )
        unmet.append(("TooLittleCovered", message))
    if elapsed_s < guard.min_duration_s:
        message = f"{elapsed_s:.0f} s of {guard.min_duration_s:.0f} s before a promotion"
        unmet.append(("TooSoon", message))
    return tuple(unmet)


def stratum_effects(time: Contrast) -> tuple[StratumEffect, ...]:
    """What each stratum says, for the record."""
    work = sum(cell.work_s for cell in time.cells) or 1.0
    return tuple(
        StratumEffect(
            cell.stratum,
            cell.baseline_requests,
            cell.candidate_requests,
            cell.work_s / work,
            None if cell.log_ratio is None else -math.expm1(cell.log_ratio.value),
        )
        for cell in time.cells
    )


def as_gain(log_ratio: float, down: float, up: float) -> Interval:
    """log(candidate / baseline) of seconds per token, and how far the gain's bounds are from it."""
    bounds = (log_ratio, log_ratio + down, log_ratio - up)
    return Interval(*(-math.expm1(min(bound, FARTHEST)) for bound in bounds))


def _gain(ratio: LogRatio, guard: Guard, pods: float) -> Interval:
    difference = guard.min_gain + guard.margin
    away = []
    for alpha in (guard.promote_alpha, guard.loss_alpha):
        normal = radius(ratio.variance, alpha, tuned_information(difference, alpha))
        away.append(normal + NormalDist().inv_cdf(1.0 - alpha) * guard.pod_spread * pods)
    return as_gain(ratio.value, *away)
