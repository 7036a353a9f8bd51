"""The exploration budget: how often, and on how many pods, the operator may try tables."""

from collections.abc import Iterable

from specdecode_api.duration import duration_s, part_of_one
from specdecode_api.v1alpha1 import RolloutSpec, Spec
from specdecode_operator.trial.crossover import MAX_PODS
from specdecode_operator.trial.record import Record, Spent
from specdecode_operator.trial.state import Kind, Origin, Trial

DAY_S = 86_400.0
MAX_REST_S = DAY_S
"""Longest rest between two trials; it doubles after each one in a row that is inconclusive."""
MAX_DOUBLINGS = 64


def recent(spent: Iterable[Spent], now_s: float) -> tuple[Spent, ...]:
    """Trials that started within a day."""
    return tuple(each for each in spent if now_s - each.started_s < DAY_S)


def worst_case_s(kind: Kind, spec: Spec) -> float:
    """Pod-seconds on the candidate of a trial that lasts as long as it may.

    Half of the time of each pod that takes turns: one pod, or up to `MAX_PODS`.
    """
    pods = 1 if kind is Kind.SWITCHBACK else min(spec.replicas, MAX_PODS)
    return 0.5 * pods * duration_s(spec.rollout.guard.max_duration)


def share(spent: Iterable[Spent], spec: Spec, now_s: float) -> float:
    """Share of a day's pod-seconds that ran, or may run, a candidate."""
    total_s = sum(each.candidate_pod_s for each in recent(spent, now_s))
    return total_s / (max(1, spec.replicas) * DAY_S)


def why_over_budget(record: Record, spec: Spec, kind: Kind, now_s: float) -> str:
    """Why a trial of the operator's own does not fit into the budget; empty if it does."""
    limits = spec.rollout.exploration
    count = len(recent(record.spent, now_s))
    if count >= limits.max_trials_per_day:
        return (
            f"{count} trials started within a day, and "
            f"rollout.exploration.maxTrialsPerDay is {limits.max_trials_per_day}"
        )
    wanted = Spent(now_s, worst_case_s(kind, spec))
    needed = share((*record.spent, wanted), spec, now_s)
    if needed > part_of_one(limits.max_candidate_share):
        return (
            f"up to {needed:.1%} of a day's pod-seconds would run candidates, and "
            f"rollout.exploration.maxCandidateShare is {limits.max_candidate_share}; a shorter "
            "rollout.guard.maxDuration needs less"
        )
    return ""


def rest_after_s(record: Record, rollout: RolloutSpec) -> float:
    """Rest after the latest trial: `coolDown`, doubled for each inconclusive one in a row."""
    cool_down_s = duration_s(rollout.guard.cool_down)
    doublings = min(MAX_DOUBLINGS, max(0, record.inconclusive - 1))
    return max(cool_down_s, min(MAX_REST_S, cool_down_s * 2.0**doublings))


def settle(spent: tuple[Spent, ...], trial: Trial, now_s: float, max_s: float) -> tuple[Spent, ...]:
    """Replace the worst case of a trial that ended by what its duration cost."""
    if trial.origin is not Origin.RECOMMENDATION:
        return spent
    used = min(1.0, trial.elapsed_s(now_s) / max_s)
    return tuple(
        Spent(each.started_s, each.candidate_pod_s * used)
        if each.started_s == trial.started_s
        else each
        for each in spent
    )
