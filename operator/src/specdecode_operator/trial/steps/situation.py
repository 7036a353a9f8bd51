"""Input of a step of the trials of a resource, and what its spec wants."""

from dataclasses import dataclass, replace

from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import RolloutSpec
from specdecode_operator import owned
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.resource import Resource, ResourceError, parse_stored
from specdecode_operator.trial.record.configuration import (
    Difference,
    InForce,
    accepted_part,
    difference,
    in_force,
)
from specdecode_operator.trial.record.objects import Commands
from specdecode_operator.trial.record.overrides import Override, holding, overridden
from specdecode_operator.trial.record.record import Record
from specdecode_operator.trial.record.revisions import pinned
from specdecode_operator.trial.record.state import Origin, Phase, Target, Trial
from specdecode_operator.trial.steps.start import edit_target
from specdecode_operator.trial.strategies.context import EngineSnapshot, TrialContext
from specdecode_operator.trial.strategies.guard import guard_of, guarded_as, timing_of


@dataclass(frozen=True, slots=True)
class Situation:
    """Input of a step apart from the record. `now_s` is in seconds since 1970."""

    observed: Observed
    resource: Resource
    snapshot: EngineSnapshot | None
    commands: Commands
    now_s: float
    image: str
    has_trials: bool = True
    """Whether the operator may run trials."""

    @property
    def rollout(self) -> RolloutSpec:
        """The part of the spec about trials."""
        return self.resource.spec.rollout

    def in_force(self, record: Record, known: InForce | None = None) -> InForce:
        """What should serve; `known` where the record has not changed since."""
        if known is not None and known.of == (record.accepted, record.tuned):
            return known
        return in_force(self.observed.resource, self.resource, record, self.image)

    def context(self, trial: Trial | None = None) -> TrialContext:
        """What a trial, or whoever learns, looks at."""
        rollout = guarded_as(self.rollout, trial.guard if trial else {})
        return TrialContext(
            self.observed,
            self.snapshot,
            self.now_s,
            guard_of(rollout, trial),
            timing_of(rollout),
            self.resource.spec,
            rollout.canary.replicas,
            duration_s(self.resource.spec.lifecycle.startup_timeout),
        )


@dataclass(frozen=True, slots=True)
class Pending:
    """The record brought in line with the spec, and what the spec wants and is not in force."""

    record: Record
    target: Target | None
    now: InForce


def wanted(record: Record, situation: Situation, known: InForce) -> Pending:
    """Compare what is in force with the spec, promoted values in the place of the spec's own.

    Args:
        known: what was in force before, which is not built again if the record has not changed.
    """
    manifest, is_guarded = situation.observed.resource, situation.rollout.edit_policy == "Guarded"
    record = replace(record, overrides=_holding(manifest, record))
    spec = overridden(manifest["spec"], record.accepted or {}, record.overrides)
    part = pinned(accepted_part(spec), situation.image)
    if not is_guarded:
        record = replace(record, accepted=part if record.overrides else None)
    elif record.accepted is None:
        record = replace(record, accepted=part)
    now = situation.in_force(record, known)
    if now.tuned is None and record.tuned is not None:
        record = replace(record, tuned=None)
    if not is_guarded:
        return Pending(_without_promotion(record), None, now)
    resource = parse_stored({**manifest, "spec": spec})
    built = owned.build(resource, situation.image)
    found = difference(now, resource, built, situation.image)
    if found is Difference.NONE and record.trial is None and built.arm == now.plain.arm:
        # Back at the accepted spec, which needs no trial; a table tried for an edit goes with it.
        is_edits = record.tuned is not None and record.tuned.origin is Origin.EDIT
        record = replace(record, accepted=part, tuned=None if is_edits else record.tuned)
        return Pending(record, None, situation.in_force(record, now))
    target = edit_target(record, now, spec, built, found, situation.image)
    return Pending(record, target, now)


def _holding(manifest: Manifest, record: Record) -> tuple[Override, ...]:
    """The overrides that hold; none if the spec was edited to what is invalid with them."""
    found = holding(manifest["spec"], record.overrides)
    try:
        if found:
            spec = overridden(manifest["spec"], record.accepted or {}, found)
            parse_stored({**manifest, "spec": spec})
    except ResourceError:
        return ()
    return found


def _without_promotion(record: Record) -> Record:
    """The record without the name of a promotion of which nothing is in force."""
    trial = record.trial
    is_ending = trial is not None and trial.phase is Phase.PROMOTING
    if is_ending or record.accepted is not None or record.tuned is not None:
        return record
    return replace(record, promoted_by="")
