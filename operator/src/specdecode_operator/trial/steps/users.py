"""Trials that users create: from a SpecDecodeTrial to a trial that runs, or to its refusal."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from specdecode_api.v1alpha1 import RolloutSpec
from specdecode_operator import owned
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.merge_patch import merge_patch
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.resource import ResourceError
from specdecode_operator.trial.record.candidate import patched, spec_in_force
from specdecode_operator.trial.record.configuration import InForce, difference
from specdecode_operator.trial.record.overrides import overrides_of
from specdecode_operator.trial.record.record import EndedTrial, Record
from specdecode_operator.trial.record.state import End, Origin, Target, TrialOutcome
from specdecode_operator.trial.steps.exploration import charged, why_over_budget
from specdecode_operator.trial.steps.finish import promoted, remembered, timestamp
from specdecode_operator.trial.steps.start import (
    StrategyRefused,
    arrange,
    edit_target,
    new_trial,
    worst_case,
)
from specdecode_operator.trial.strategies.guard import contradiction, guarded_as

NO_TRIALS = (
    "engine.runtime VLLM has no trials, and a trial cannot change the runtime; edit the "
    "SpecDecodeDeployment"
)
_BY_HAND = TrialOutcome(End.PROMOTED, "PromotedByHand", "a user asked for it")


@dataclass(frozen=True, slots=True)
class UserTrial:
    """A SpecDecodeTrial of a user, as far as it can be carried out."""

    name: str
    target: Target | None = None
    refusal: TrialOutcome | None = None
    strategy: str = "Auto"
    is_promoted: bool = False
    is_report: bool = True
    guard: Mapping[str, Any] = field(default_factory=dict)
    is_exempt: bool = False
    """Whether it may begin beyond the exploration budget."""


def user_trial(
    manifest: Manifest, resource: Manifest, now: InForce, record: Record, image: str
) -> UserTrial:
    """Read a SpecDecodeTrial against the configuration in force.

    Args:
        resource: the SpecDecodeDeployment.
        image: engine image where the spec names none.
    """
    spec, name = manifest["spec"], str(manifest["metadata"]["name"])
    if spec.get("state") == "Aborted":
        aborted = TrialOutcome(End.ABORTED, "AbortedByHand", "a user asked for it before it began")
        return UserTrial(name, refusal=aborted)
    in_force = {**resource, "spec": spec_in_force(resource["spec"], record.accepted)}
    try:
        wanted = patched(in_force, spec["candidate"])
        built = owned.build(wanted, image)
    except ResourceError as error:
        return UserTrial(name, refusal=_refused("InvalidCandidate", str(error)))
    runtimes = {wanted.spec.engine.runtime, now.resource.spec.engine.runtime}
    if runtimes != {"Specdecode"}:
        return UserTrial(name, refusal=_refused("RuntimeWithoutTrials", NO_TRIALS))
    found = difference(now, wanted, built, image)
    raw = merge_patch(in_force["spec"], spec["candidate"])
    target = edit_target(Record(), now, raw, built, found, image)
    if target is None:
        if record.promoted_by == name:
            return UserTrial(name, refusal=_BY_HAND)
        message = "the candidate is the configuration in force"
        return UserTrial(name, refusal=_refused("NothingToTry", message))
    return UserTrial(
        name,
        replace(target, overrides=overrides_of(resource["spec"], spec["candidate"])),
        None,
        str(spec.get("strategy", "Auto")),
        bool(spec.get("promote")),
        spec.get("onSuccess", "Report") == "Report",
        dict(spec.get("guard") or {}),
        spec.get("explorationBudget", "Enforce") == "Exempt",
    )


def refused(found: UserTrial, why: str) -> UserTrial:
    """The trial, refused because the API server would not accept its candidate."""
    return replace(found, target=None, refusal=_refused("InvalidCandidate", why))


def begin_user(
    record: Record,
    now: InForce,
    found: UserTrial,
    rollout: RolloutSpec,
    observed: Observed,
    image: str,
    at_s: float,
) -> Record:
    """Begin the trial, promote its candidate at once, or refuse it."""
    if found.refusal is not None or found.target is None:
        return refuse(record, found, at_s)
    if found.is_promoted:
        record = promoted(record, found.target, Origin.USER, now.plain.arm, found.name)
        return _ended(record, found, _BY_HAND, at_s)
    if why := contradiction(rollout, found.guard):
        return _ended(record, found, _refused("InvalidCandidate", why), at_s)
    own = guarded_as(rollout.model_copy(update={"strategy": found.strategy}), found.guard)
    how = arrange(found.target, own, now, observed, image)
    if isinstance(how, StrategyRefused):
        return _ended(record, found, _refused("StrategyNotPossible", how.message), at_s)
    spec = now.resource.spec
    wanted = worst_case(how, spec, own, Origin.USER, at_s)
    if not found.is_exempt and (why := why_over_budget(record, spec, wanted)):
        message = f"{why}, and explorationBudget: Exempt is not limited by it"
        return _ended(record, found, _refused("BudgetExceeded", message), at_s)
    trial = new_trial(now, found.target, how, Origin.USER, rollout, at_s)
    trial = replace(
        trial, name=found.name, is_published=True, is_report=found.is_report, guard=found.guard
    )
    return replace(charged(record, wanted), trial=trial)


def refuse(record: Record, found: UserTrial, at_s: float) -> Record:
    """The record in which a refused trial has ended."""
    assert found.refusal is not None, "a trial without a target is refused"
    return _ended(record, found, found.refusal, at_s)


def _refused(reason: str, message: str) -> TrialOutcome:
    return TrialOutcome(End.ABORTED, reason, f"{message}; create another SpecDecodeTrial")


def _ended(record: Record, found: UserTrial, outcome: TrialOutcome, at_s: float) -> Record:
    """Remember the end of a trial; what was measured before is kept."""
    before = record.ending_by_name(found.name)
    status = {
        **(before.status if before else {}),
        "phase": "Ended",
        "verdict": outcome.end.value,
        "reason": outcome.reason,
        "message": outcome.message[:1024],
        "endedAt": timestamp(at_s),
    }
    target_id = before.id if before else ""  # what was not measured may be tried again
    return remembered(record, EndedTrial(found.name, target_id, Origin.USER.value, status))
