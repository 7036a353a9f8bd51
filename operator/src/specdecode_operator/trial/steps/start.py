"""What is to be tried next, and how: an edit of a guarded spec, or a recommended table."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import RolloutSpec, Spec
from specdecode_operator import owned
from specdecode_operator.judge.alpha_budget import spend
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.judge.separate_pods import FEWEST_PODS
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.owned.hashes import digest
from specdecode_operator.trial.record.configuration import (
    Difference,
    InForce,
    accepted_part,
    table_target,
)
from specdecode_operator.trial.record.record import Record, Spent
from specdecode_operator.trial.record.revisions import pinned
from specdecode_operator.trial.record.state import (
    Kind,
    Origin,
    Restarts,
    Table,
    Target,
    Trial,
    target_id,
)
from specdecode_operator.trial.steps.exploration import charged, rest_after_s, worst_case_s
from specdecode_operator.trial.strategies.blocks import (
    interrupts,
    start_time_s,
    startup_of,
    why_too_long,
)
from specdecode_operator.trial.strategies.guard import guard_of, timing_of
from specdecode_operator.updates.update_strategy import was_in_place

NEEDS_RESTART = "NeedsRestart"
"""Reason of a trial that a running engine could not take part in."""

MIN_HOT_REPLICAS = 2


@dataclass(frozen=True, slots=True)
class Proposal:
    """A table that measurements speak for: what a trial in mode Auto is about."""

    table: Table
    arm: ArmKey


def edit_target(
    record: Record,
    now: InForce,
    spec: Mapping[str, Any],
    built: owned.Built,
    found: Difference,
    image: str,
) -> Target | None:
    """What the spec wants and is not in force; None where it is."""
    if found is Difference.NONE:
        return None
    if found is Difference.TABLE:
        arm = ArmKey(now.built.config_hash, built.arm.table_hash)
        target = table_target(now, built.entries, arm)
        ended = record.ending_of(target.id)
        if ended is None or ended.reason != NEEDS_RESTART:
            return target
    return Target(target_id(built.arm), built.arm, None, pinned(accepted_part(spec), image))


@dataclass(frozen=True, slots=True)
class StrategyRefused:
    """Why a trial cannot run with the strategy of the spec."""

    message: str


def choose_kind(target: Target, rollout: RolloutSpec, replicas: int) -> Kind | StrategyRefused:
    """How a candidate is tried: as `rollout.strategy` requires, or not at all.

    A table that running engines can load is tried in turns on the same pods. Any other candidate
    needs new pods: of its own if they are enough to decide, else the same pods restart in turns.
    """
    strategy = rollout.strategy
    if target.table is None:
        if strategy == "Hot":
            return StrategyRefused(
                "rollout.strategy Hot cannot try a candidate that running engines cannot load; "
                "set it to Auto, Canary or Switchback"
            )
        if strategy == "Auto":
            strategy = "Canary" if _decides(rollout, replicas) else "Switchback"
        return Kind(strategy)
    if strategy == "Canary":
        return StrategyRefused(
            "rollout.strategy Canary cannot try a table that has the configuration of the serving "
            "pods; set it to Auto, Hot or Switchback"
        )
    if strategy == "Hot" and replicas < MIN_HOT_REPLICAS:
        return StrategyRefused(
            f"rollout.strategy Hot needs {MIN_HOT_REPLICAS} replicas, and replicas is {replicas}; "
            "raise replicas, or set it to Auto or Switchback"
        )
    is_alone = strategy == "Switchback" or replicas < MIN_HOT_REPLICAS
    return Kind.SWITCHBACK if is_alone else Kind.HOT


def _decides(rollout: RolloutSpec, replicas: int) -> bool:
    """Whether both arms of a canary have enough pods for a verdict."""
    canary = rollout.canary
    others = canary.replicas if canary.baseline == "Fresh" else replicas
    return min(canary.replicas, others) >= FEWEST_PODS


@dataclass(frozen=True, slots=True)
class Arrangement:
    """How a candidate is tried."""

    kind: Kind
    restarts: Restarts | None = None


def arrange(
    target: Target, rollout: RolloutSpec, now: InForce, observed: Observed, image: str
) -> Arrangement | StrategyRefused:
    """Choose how a candidate is tried, and check that a verdict is possible.

    Args:
        rollout: with the trial's own strategy and guard, where it has any.
        image: engine image where the spec names none.
    """
    spec = now.resource.spec
    kind = choose_kind(target, rollout, spec.replicas)
    if isinstance(kind, StrategyRefused):
        return kind
    if kind is not Kind.SWITCHBACK or target.table is not None:
        return Arrangement(kind)
    is_chosen = rollout.strategy == "Switchback"
    if not is_chosen and (why := interrupts(spec, was_in_place(observed))):
        return StrategyRefused(
            f"the candidate needs other pods, and {why}: its trial would interrupt serving; add a "
            "replica or capacity, or set rollout.strategy to Switchback, which accepts that"
        )
    serving = [pod for pod in observed.pods if pods.is_stable(pod) and pods.is_ready(pod)]
    pod_s = start_time_s(serving, duration_s(spec.lifecycle.startup_timeout))
    startup = startup_of(spec, pod_s)
    if why := why_too_long(guard_of(rollout), timing_of(rollout), startup):
        return StrategyRefused(why)
    return Arrangement(kind, Restarts(startup, image, may_interrupt=is_chosen))


def worst_case(
    how: Arrangement, spec: Spec, rollout: RolloutSpec, origin: Origin, at_s: float
) -> Spent:
    """What a trial that begins now may cost.

    Args:
        rollout: with the trial's own guard, where it has any.
    """
    cost_s = worst_case_s(how.kind, spec, rollout, has_restarts=how.restarts is not None)
    return Spent(float(int(at_s)), cost_s, origin)


def begin_edit(
    record: Record,
    now: InForce,
    target: Target,
    how: Arrangement,
    rollout: RolloutSpec,
    at_s: float,
) -> Record:
    """Try an edit."""
    trial = new_trial(now, target, how, Origin.EDIT, rollout, at_s)
    spent = worst_case(how, now.resource.spec, rollout, Origin.EDIT, at_s)
    return replace(charged(record, spent), trial=trial)


def begin_proposal(
    record: Record, now: InForce, target: Target, how: Arrangement, spent: Spent
) -> Record:
    """Try a recommended table; it costs a part of the error budget."""
    spec = now.resource.spec
    grant = spend(record.alpha_budget)
    trial = new_trial(now, target, how, spent.origin, spec.rollout, spent.started_s)
    return replace(
        charged(record, spent),
        trial=replace(trial, promote_alpha=grant.alpha),
        alpha_budget=grant.alpha_budget,
    )


def why_held(record: Record, now: InForce, arm: ArmKey, at_s: float) -> str:
    """Why a recommended table is not tried now; empty where it is."""
    rest_s = record.ended_s + rest_after_s(record, now.resource.spec.rollout) - at_s
    if record.trial is not None:
        return f"trial {record.trial.target.id} runs"
    if record.is_rejected(target_id(arm)):
        return "this table was tried and not taken"
    if record.ended_s and rest_s > 0:
        return f"the last trial has just ended; {rest_s:.0f} s of rest are left"
    if now.resource.spec.replicas == 0:
        return "no replicas are wanted"
    return ""


def named(record: Record, resource: Manifest) -> Record:
    """Name the SpecDecodeTrial of the trial that has just begun."""
    trial, metadata = record.trial, resource["metadata"]
    if trial is None or trial.name:
        return record
    fingerprint = digest([trial.target.id, trial.started_s])[:8]
    return replace(record, trial=replace(trial, name=f"{metadata['name']}-{fingerprint}"))


def new_trial(
    now: InForce,
    target: Target,
    how: Arrangement,
    origin: Origin,
    rollout: RolloutSpec,
    at_s: float,
) -> Trial:
    """A trial that begins at `at_s`, in seconds since 1970; a status keeps whole seconds."""
    at_s = float(int(at_s))
    return Trial(
        target=target,
        kind=how.kind,
        restarts=how.restarts,
        origin=origin,
        old=now.built.arm,
        old_table=dict(now.table),
        started_s=at_s,
        since_s=at_s,
        progress_s=at_s,
        seed=int(target.id, 16) ^ int(at_s),
        has_fresh_baseline=how.kind is Kind.CANARY and rollout.canary.baseline == "Fresh",
    )
