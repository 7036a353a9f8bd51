"""A block of a trial that restarts pods, until its pods serve: late, or without room.

How long a pod without a node is waited for is decided as in any rollout, by `update_strategy`.
"""

from dataclasses import replace
from datetime import UTC, datetime

from specdecode_operator.judge.evidence import Role
from specdecode_operator.objects import pods as reading_pods
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.times import time_of
from specdecode_operator.trial.record.state import End, Trial, TrialOutcome
from specdecode_operator.trial.strategies.block_pods import (
    candidate_trouble,
    pods_of_block,
    restarts_of,
    role_now,
)
from specdecode_operator.trial.strategies.context import TrialContext
from specdecode_operator.updates.update_strategy import lacks_capacity, shortest_wait


def late(trial: Trial, context: TrialContext) -> TrialOutcome | None:
    """The end of a trial whose pods do not serve within `lifecycle.startupTimeout`."""
    began_s = trial.period.began_s or context.now_s
    starting = [pod for pod in pods_of_block(trial, context) if not reading_pods.is_ready(pod)]
    if not starting and context.now_s - began_s <= context.startup_s * context.spec.replicas:
        return None
    ages_s = (context.now_s - max(began_s, _created_s(pod)) for pod in starting)
    if starting and max(ages_s) <= context.startup_s:
        return None
    trouble = candidate_trouble(trial, context, starting)
    why = trouble.message if trouble else "they start"
    text = f"pods do not serve within lifecycle.startupTimeout ({context.startup_s:.0f} s): {why}"
    if role_now(trial) is Role.BASELINE:
        return TrialOutcome(End.INCONCLUSIVE, "BaselineNotReady", f"the baseline's {text}")
    if any(map(reading_pods.lacks_room, starting)):
        return TrialOutcome(End.INCONCLUSIVE, "NoRoom", f"the candidate's {text}")
    return TrialOutcome(End.ROLLED_BACK, "CandidateNotReady", f"the candidate's {text}")


def has_no_room(trial: Trial, context: TrialContext) -> bool:
    """Whether no node is waited for any longer."""
    lacking = filter(lacks_capacity, pods_of_block(trial, context))
    since = datetime.fromtimestamp(trial.period.began_s or context.now_s, UTC)
    wait = shortest_wait(lacking, context.observed, context.spec, since)
    return wait is not None and wait.left_s <= 0


def without_room(trial: Trial, context: TrialContext) -> Trial:
    """Continue in place, or end where that would interrupt what a user has not asked for."""
    restarts, update = restarts_of(trial), context.spec.update_strategy.type
    if restarts.is_in_place:
        return trial
    may_stop = restarts.may_interrupt or context.spec.replicas > 1
    if update == "Auto" and may_stop:
        return replace(trial, restarts=replace(restarts, is_in_place=True))
    timeout = context.spec.update_strategy.surge_timeout
    message = (
        f"no node has room for a further pod, or no PVC for it, within {timeout}, and "
        f"updateStrategy {update} does not stop the serving one for a trial that strategy Auto "
        "has chosen; free accelerators, or use strategy Switchback, which interrupts serving"
    )
    if update == "Surge":
        message = "no node has room for a further pod, which updateStrategy Surge needs"
    return replace(trial, outcome=TrialOutcome(End.INCONCLUSIVE, "NoRoom", message))


def _created_s(pod: Manifest) -> float:
    created = time_of(pod["metadata"], "creationTimestamp")
    return created.timestamp() if created is not None else 0.0
