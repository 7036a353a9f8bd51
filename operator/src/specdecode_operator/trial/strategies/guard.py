"""The judge's guard and the times of a trial, from the spec."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from specdecode_api.duration import duration_s, part_of_one
from specdecode_api.v1alpha1 import RolloutSpec
from specdecode_api.v1alpha1.rollout import GuardSpec
from specdecode_api.validation_errors import validation_errors
from specdecode_operator.judge.guard import FALLEN_PAIRS, PROMOTE_ALPHA, Aim, Guard
from specdecode_operator.trial.record.state import Origin, Trial

LOOK_S = 15.0
"""Most time between looks at a trial that waits for its pods or has no complete pair yet."""
LOOKS_PER_TURN = 4
RESTARTED_PAIRS = 1
"""Pairs that show `AcceptLengthFell` by restart: the pods have a baseline from before the trial,
and a second pair would serve a thousand requests with a draft that does not fit."""


@dataclass(frozen=True, slots=True)
class TrialTiming:
    """Times of a trial in seconds."""

    warm_up_s: float
    block_s: float
    washout_s: float
    max_duration_s: float

    @property
    def look_s(self) -> float:
        """Least time between looks at pods that take turns."""
        return min(LOOK_S, max(1.0, (self.washout_s or self.block_s) / LOOKS_PER_TURN))


def guarded_as(rollout: RolloutSpec, guard: Mapping[str, Any]) -> RolloutSpec:
    """Apply a trial's differences from the deployment's guard.

    Where both contradict each other, the deployment's own stays: `contradiction` ends the trial.
    """
    if not guard:
        return rollout
    try:
        return rollout.model_copy(update={"guard": _merged(rollout, guard)})
    except ValidationError:
        return rollout


def contradiction(rollout: RolloutSpec, guard: Mapping[str, Any]) -> str:
    """Why a trial's guard does not go with the deployment's; empty where it does."""
    try:
        _merged(rollout, guard)
    except ValidationError as error:
        why = "; ".join(validation_errors(error, GuardSpec))
        least, most = (_origin(rollout, guard, name) for name in ("minDuration", "maxDuration"))
        return f"guard.{why} ({least}, {most})"
    return ""


def _merged(rollout: RolloutSpec, guard: Mapping[str, Any]) -> GuardSpec:
    return GuardSpec.from_resource(rollout.guard.model_dump(by_alias=True) | dict(guard))


def _origin(rollout: RolloutSpec, guard: Mapping[str, Any], name: str) -> str:
    """A field with its value, and who set it."""
    if name in guard:
        return f"{name} is {guard[name]} in the trial"
    own = rollout.guard.model_dump(by_alias=True)[name]
    return f"{name} is {own} in rollout.guard of the deployment"


def guard_of(rollout: RolloutSpec, trial: Trial | None = None) -> Guard:
    """What a trial must show: an edit no loss, a recommendation a gain."""
    wanted = rollout.guard
    is_edit = trial is not None and trial.origin is Origin.EDIT
    is_by_restart = trial is not None and trial.restarts is not None
    return Guard(
        aim=Aim.NO_LOSS if is_edit else Aim.GAIN,
        min_gain=part_of_one(wanted.min_gain),
        margin=part_of_one(wanted.margin),
        promote_alpha=trial.promote_alpha if trial else PROMOTE_ALPHA,
        min_requests=wanted.min_requests,
        min_stratum_requests=wanted.min_stratum_requests,
        min_duration_s=duration_s(wanted.min_duration),
        max_duration_s=duration_s(wanted.max_duration),
        min_pairs=rollout.switchback.min_pairs,
        fallen_pairs=RESTARTED_PAIRS if is_by_restart else FALLEN_PAIRS,
    )


def guarded_timing(rollout: RolloutSpec, trial: Trial) -> TrialTiming:
    """How fast this trial goes, its own guard included."""
    return timing_of(guarded_as(rollout, trial.guard))


def timing_of(rollout: RolloutSpec) -> TrialTiming:
    """How fast a trial goes."""
    return TrialTiming(
        warm_up_s=duration_s(rollout.guard.warm_up),
        block_s=duration_s(rollout.switchback.block),
        washout_s=duration_s(rollout.switchback.washout),
        max_duration_s=duration_s(rollout.guard.max_duration),
    )
