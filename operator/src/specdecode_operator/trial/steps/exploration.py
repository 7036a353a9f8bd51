"""The exploration budget: how many pod-seconds of a day run candidates, and how many trials start.

Every trial counts with its longest duration until it ends, and with its own afterwards. A table
that is recommended, or a user's trial, begins only if it fits; a user's trial may be exempt. A
guarded edit always begins: without a trial it would be in force on all pods, and an edit that
waited for tomorrow would serve nobody.
"""

from collections.abc import Iterable
from dataclasses import replace

from specdecode_api.duration import duration_s, part_of_one
from specdecode_api.v1alpha1 import RolloutSpec, Spec
from specdecode_operator.judge.alpha_budget import AlphaBudget
from specdecode_operator.trial.record.record import EndedTrial, Record, Spent, seconds_of
from specdecode_operator.trial.record.state import Kind, Origin, Trial
from specdecode_operator.trial.strategies.crossover import MAX_PODS

DAY_S = 86_400.0
MAX_REST_S = DAY_S
"""Longest rest between two trials; it doubles after each one in a row that is inconclusive."""
MAX_DOUBLINGS = 64


def recent(spent: Iterable[Spent], now_s: float) -> tuple[Spent, ...]:
    """Trials that started within a day."""
    return tuple(each for each in spent if now_s - each.started_s < DAY_S)


def worst_case_s(kind: Kind, spec: Spec, rollout: RolloutSpec, *, has_restarts: bool) -> float:
    """Pod-seconds on the candidate of a trial that lasts as long as it may.

    All time of a canary's pods; else half of the time of each pod that takes turns: one pod, up to
    `MAX_PODS`, or all that restart.

    Args:
        rollout: with the trial's own guard, where it has any.
    """
    duration = duration_s(rollout.guard.max_duration)
    if kind is Kind.CANARY:
        return rollout.canary.replicas * duration
    if has_restarts:
        return 0.5 * spec.replicas * duration
    return 0.5 * (1 if kind is Kind.SWITCHBACK else min(spec.replicas, MAX_PODS)) * duration


def share(spent: Iterable[Spent], spec: Spec, now_s: float) -> float:
    """Share of a day's pod-seconds that ran, or may run, a candidate."""
    total_s = sum(each.candidate_pod_s for each in recent(spent, now_s))
    return total_s / (max(1, spec.replicas) * DAY_S)


def charged(record: Record, spent: Spent) -> Record:
    """The record with the worst case of a trial that begins."""
    return replace(record, spent=(*recent(record.spent, spent.started_s), spent))


def why_too_many(record: Record, spec: Spec, now_s: float) -> str:
    """Why the operator starts no further trial of its own today; empty if it may."""
    limit = spec.rollout.exploration.max_trials_per_day
    own = [each for each in recent(record.spent, now_s) if each.origin is Origin.RECOMMENDATION]
    if len(own) < limit:
        return ""
    return (
        f"the operator has started {len(own)} trials within a day, and "
        f"rollout.exploration.maxTrialsPerDay is {limit}"
    )


def why_over_budget(record: Record, spec: Spec, wanted: Spent) -> str:
    """Why a trial does not fit into the share of pod-seconds; empty if it does."""
    limit = spec.rollout.exploration.max_candidate_share
    needed = share((*record.spent, wanted), spec, wanted.started_s)
    if needed <= part_of_one(limit):
        return ""
    used = share(record.spent, spec, wanted.started_s)
    return (
        f"up to {needed:.1%} of a day's pod-seconds would run candidates ({used:.1%} by trials of "
        f"the last 24 hours), and rollout.exploration.maxCandidateShare is {limit}; a shorter "
        "guard.maxDuration needs less"
    )


def rest_after_s(record: Record, rollout: RolloutSpec) -> float:
    """Rest after the latest trial: `coolDown`, doubled for each inconclusive one in a row."""
    cool_down_s = duration_s(rollout.guard.cool_down)
    doublings = min(MAX_DOUBLINGS, max(0, record.inconclusive - 1))
    return max(cool_down_s, min(MAX_REST_S, cool_down_s * 2.0**doublings))


def settle(spent: tuple[Spent, ...], trial: Trial, now_s: float, max_s: float) -> tuple[Spent, ...]:
    """Replace the worst case of a trial that ended by what its duration cost."""
    used = min(1.0, trial.elapsed_s(now_s) / max_s)
    return tuple(
        replace(each, candidate_pod_s=each.candidate_pod_s * used)
        if (each.started_s, each.origin) == (trial.started_s, trial.origin)
        else each
        for each in spent
    )


def recovered(record: Record, spec: Spec, now_s: float) -> Record:
    """The record with budgets from the trials that are kept, where those of the status are lost.

    Every trial counts as if all pods had run its candidate, and none as promoted.
    """
    spent = (
        Spent(seconds_of(str(each.status["startedAt"])), _longest_s(each, spec), each.asked_by)
        for each in record.history
        if each.status.get("startedAt")
    )
    own = sum(each.asked_by is Origin.RECOMMENDATION for each in record.history)
    return replace(record, spent=recent(spent, now_s), alpha_budget=AlphaBudget(trials=own))


def _longest_s(ended: EndedTrial, spec: Spec) -> float:
    return max(1, spec.replicas) * (ended.ended_s - seconds_of(str(ended.status["startedAt"])))
