"""What is to be tried next, and how: an edit of a guarded spec, or a recommended table."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import RolloutSpec
from specdecode_operator import children
from specdecode_operator.children.hashes import digest
from specdecode_operator.judge.evidence import ArmKey
from specdecode_operator.judge.wealth import spend
from specdecode_operator.trial.candidate import candidate_of, spec_in_force
from specdecode_operator.trial.configuration import (
    Difference,
    InForce,
    accepted_part,
    table_target,
    target_id,
)
from specdecode_operator.trial.record import Record
from specdecode_operator.trial.state import Kind, Origin, Table, Target, Trial

NEEDS_RESTART = "NeedsRestart"
"""Reason of a trial that a running engine could not take part in."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A table that measurements speak for: what a trial in mode Auto is about."""

    table: Table
    arm: ArmKey


def edit_target(
    record: Record,
    now: InForce,
    spec: Mapping[str, Any],
    built: children.Built,
    found: Difference,
) -> Target | None:
    """What the spec asks for and is not in force; None where it is."""
    if found is Difference.NONE:
        return None
    if found is Difference.TABLE:
        arm = ArmKey(now.built.config_hash, built.arm.table_hash)
        target = table_target(now, built.entries, arm)
        ended = record.ending_of(target.id)
        if ended is None or ended.reason != NEEDS_RESTART:
            return target
    return Target(target_id(built.arm), built.arm, None, accepted_part(spec))


def begin_edit(
    record: Record, now: InForce, target: Target, spec: Mapping[str, Any], at_s: float
) -> Record:
    """Try an edit.

    Args:
        spec: of the custom resource.
    """
    rollout = now.resource.spec.rollout
    trial = new_trial(now, target, kind_of(now, target, rollout), Origin.EDIT, rollout, at_s)
    return replace(record, trial=_named(trial, record, spec, now.resource.name))


def begin_proposal(
    record: Record, now: InForce, proposal: Proposal, spec: Mapping[str, Any], at_s: float
) -> Record:
    """Try a recommended table, at the price of some of the error budget.

    Args:
        spec: of the custom resource.
    """
    rollout = now.resource.spec.rollout
    grant = spend(record.wealth)
    target = table_target(now, proposal.table, proposal.arm)
    kind = kind_of(now, target, rollout)
    trial = new_trial(now, target, kind, Origin.RECOMMENDATION, rollout, at_s)
    trial = _named(replace(trial, promote_alpha=grant.alpha), record, spec, now.resource.name)
    return replace(record, trial=trial, wealth=grant.wealth)


def why_held(record: Record, now: InForce, arm: ArmKey, at_s: float) -> str:
    """Why a recommended table is not tried now; empty where it is."""
    rest_s = record.ended_s + duration_s(now.resource.spec.rollout.guard.cool_down) - at_s
    if record.trial is not None:
        return f"trial {record.trial.target.id} runs"
    if record.is_rejected(target_id(arm)):
        return "this table was tried and not taken"
    if record.ended_s and rest_s > 0:
        return f"the last trial has just ended; {rest_s:.0f} s of rest are left"
    if now.resource.spec.replicas == 0:
        return "no replicas are wanted"
    return ""


def kind_of(now: InForce, target: Target, rollout: RolloutSpec) -> Kind:
    """How a target is tried: another table by turns of the same pods, all else by a canary."""
    if target.table is None:
        return Kind.CANARY
    if rollout.strategy == "Switchback" or now.resource.spec.replicas == 1:
        return Kind.SWITCHBACK
    return Kind.HOT


def _named(trial: Trial, record: Record, spec: Mapping[str, Any], deployment: str) -> Trial:
    """Name the SpecDecodeTrial, if the target can be written as its candidate."""
    if not candidate_of(spec_in_force(spec, record.accepted), trial.target):
        return trial
    return replace(trial, name=f"{deployment}-{digest([trial.target.id, trial.started_s])[:8]}")


def new_trial(
    now: InForce, target: Target, kind: Kind, origin: Origin, rollout: RolloutSpec, at_s: float
) -> Trial:
    """A trial that begins at `at_s`, in seconds since 1970."""
    return Trial(
        target=target,
        kind=kind,
        origin=origin,
        old=now.built.arm,
        old_table=now.table,
        started_s=at_s,
        since_s=at_s,
        seed=int(target.id, 16) ^ int(at_s),
        has_fresh_baseline=kind is Kind.CANARY and rollout.canary.baseline == "Fresh",
    )
