"""When to look at which engines, and the tables that they must run then. Pure.

A trial in turns needs three looks per turn: when its tables are sent, at the end of the washout and
at the end of the block. Arms on separate pods need one at the end of each window, and one a minute
for what is certain, such as failures. Until a first pair or window is complete there are more, so
that alarms are early.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from specdecode_api import names
from specdecode_operator.judge.turns import LONGEST
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.resource import parse_stored
from specdecode_operator.trial.record.record import Record
from specdecode_operator.trial.record.state import Kind, Phase, Table, Trial
from specdecode_operator.trial.strategies import block_pods, canary, crossover, restarts
from specdecode_operator.trial.strategies.context import role_of, uid_of
from specdecode_operator.trial.strategies.early_alarms import (
    EARLY_LOOK_S,
    EARLY_REQUESTS,
    answered_by_candidate,
    is_early,
)
from specdecode_operator.trial.strategies.guard import LOOK_S, TrialTiming, guarded_timing

REST_LOOK_S = 60.0
"""Between looks at engines that take part in no trial."""
MAX_PODS_AT_REST = 64
MAX_PODS_PER_ARM = 8
"""Of arms on separate pods."""
MISSED_LOOKS = 3
"""Looks after which pods give up the table of a trial: the operator is away."""


@dataclass(frozen=True, slots=True)
class Look:
    """The next look at the engines of a resource."""

    due_s: float
    """Seconds until it is due; at most 0: now."""
    pods: tuple[Manifest, ...] = ()
    tables: Mapping[str, Table] = field(default_factory=lambda: MappingProxyType({}))
    """The table that a pod must run, by its uid; the other pods keep theirs."""
    expires_after_s: float | None = None
    """When pods return to their last table without expiry, unless a look renews it."""


def next_look(observed: Observed, record: Record, now_s: float, since_s: float) -> Look | None:
    """The next look, or None if nothing depends on the engines' metrics.

    Args:
        now_s: seconds since 1970.
        since_s: seconds since the latest look; infinite if there was none.

    Raises:
        ResourceError: the spec is invalid.
    """
    spec = parse_stored(observed.resource).spec
    ready = tuple(pod for pod in observed.pods if pods.is_ready(pod))
    trial = record.trial
    if trial is None:
        learns = spec.rollout.mode != "Manual" and spec.speculation.algorithm != "NONE"
        # Without trials, for the measured work in the status.
        learns = learns or spec.engine.runtime != "Specdecode"
        serving = ready[:MAX_PODS_AT_REST]
        return Look(REST_LOOK_S - since_s, serving) if learns and serving else None
    timing = guarded_timing(spec.rollout, trial)
    if trial.elapsed_s(now_s) > timing.max_duration_s + crossover.PATIENCE_S:
        # Its end cannot be stored; until it can, engines run what is in force.
        trial = replace(trial, is_paused=True)
    found = _participants(trial, ready)
    due_s = _due_s(trial, timing, found, now_s, since_s)
    return Look(due_s, found, _tables(trial, found), _expires_after_s(trial, timing))


def _expires_after_s(trial: Trial, timing: TrialTiming) -> float | None:
    """Three times the longest time between looks; the table of a verdict stays."""
    if trial.phase.is_ending:
        return None
    return MISSED_LOOKS * max(LONGEST * timing.block_s, REST_LOOK_S)


def _due_s(
    trial: Trial, timing: TrialTiming, found: tuple[Manifest, ...], now_s: float, since_s: float
) -> float:
    if trial.is_paused:
        return REST_LOOK_S - since_s
    if trial.restarts is not None or trial.kind is Kind.CANARY:
        return _due_on_new_pods_s(trial, timing, found, now_s, since_s)
    retry_s = timing.look_s - since_s
    period = trial.period
    if trial.phase is not Phase.MEASURING or period.placed_s is None:
        return retry_s
    if period.counted_s is None:
        washout_s = crossover.washout_s(trial, timing.washout_s)
        return max(period.placed_s + washout_s - now_s, retry_s)
    if is_early(trial):
        return retry_s
    border_s = period.counted_s + crossover.block_s(trial, timing.block_s) - now_s
    return max(border_s, retry_s)


def _due_on_new_pods_s(
    trial: Trial, timing: TrialTiming, found: tuple[Manifest, ...], now_s: float, since_s: float
) -> float:
    """At the next border, once a minute for what is certain, and more often for early alarms."""
    own = trial.target.arm.config_hash
    is_armed = is_early(trial) and any(pods.config_hash_of(pod) == own for pod in found)
    if is_armed and answered_by_candidate(trial) < EARLY_REQUESTS:
        interval_s = EARLY_LOOK_S
    else:
        interval_s = LOOK_S if is_early(trial) else REST_LOOK_S
    borders_s = restarts.border_s if trial.restarts is not None else canary.border_s
    border_s = borders_s(trial, timing)
    left_s = interval_s if border_s is None else min(interval_s, border_s - now_s + since_s)
    return max(EARLY_LOOK_S, left_s) - since_s


def _participants(trial: Trial, ready: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    if trial.kind is Kind.CANARY:
        return (
            *_of_role(ready, names.ROLE_CANARY, trial.target.arm.config_hash),
            *_of_role(ready, canary.baseline_role(trial), trial.old.config_hash),
        )
    if trial.restarts is not None:
        return _restarted(trial, ready)[: restarts.MAX_PODS]
    if trial.phase is Phase.MEASURING:
        return tuple(pod for pod in ready if uid_of(pod) in trial.pods)
    if trial.phase.is_ending:
        unsettled = (pod for pod in ready if not crossover.is_settled_on(trial, pod))
        return tuple(unsettled)[: 2 * MAX_PODS_PER_ARM]
    return ()


def _restarted(trial: Trial, ready: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
    if block_pods.in_block(trial):
        stable = (pod for pod in ready if role_of(pod) == names.ROLE_STABLE)
        return tuple(pod for pod in stable if block_pods.is_of_block(trial, pod))
    return _of_role(ready, names.ROLE_STABLE, trial.old.config_hash)


def _of_role(ready: tuple[Manifest, ...], role: str, config_hash: str) -> tuple[Manifest, ...]:
    found = (
        pod for pod in ready if role_of(pod) == role and pods.config_hash_of(pod) == config_hash
    )
    return tuple(found)[:MAX_PODS_PER_ARM]


def _tables(trial: Trial, found: tuple[Manifest, ...]) -> Mapping[str, Table]:
    """Of the participants; of all stable pods, some at each look, once there is a verdict."""
    if trial.kind is Kind.CANARY or trial.restarts is not None:
        return {}
    by_arm = {trial.old: trial.old_table, trial.target.arm: trial.target.table or {}}
    return {
        uid_of(pod): by_arm[crossover.arm_of(trial, uid_of(pod))]
        for pod in found
        if pods.config_hash_of(pod) == trial.old.config_hash
    }
