"""SpecDecodeTrials and ControllerRevisions as output: what to write and delete, and statuses."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specdecode_api import names
from specdecode_operator.objects.kinds import TRIAL, Manifest
from specdecode_operator.objects.observed import Observed, controller_of
from specdecode_operator.objects.resource import Resource
from specdecode_operator.owned.build import owner_reference
from specdecode_operator.trial.record import verdict_record
from specdecode_operator.trial.record.candidate import candidate_of, spec_in_force
from specdecode_operator.trial.record.configuration import accepted_part
from specdecode_operator.trial.record.record import EndedTrial, Record
from specdecode_operator.trial.record.revisions import (
    Revision,
    next_number,
    pinned,
    readable,
    rendered_as,
    revision,
    revision_manifest,
    surplus,
)
from specdecode_operator.trial.record.state import End, Origin, Trial
from specdecode_operator.trial.record.stored import (
    has_ended,
    has_promoted,
    state_of,
    surplus_trials,
)
from specdecode_operator.trial.steps.finish import progress, timestamp
from specdecode_operator.trial.steps.machine import Step
from specdecode_operator.trial.strategies import block_pods, restarts
from specdecode_operator.trial.strategies.guard import (
    TrialTiming,
    guard_of,
    guarded_as,
    guarded_timing,
)

STATUS_EVERY_S = 120
"""Measured time after which the status of a trial is written again without any other change."""


@dataclass(frozen=True, slots=True)
class TrialObjects:
    """Requests for SpecDecodeTrials."""

    creates: tuple[Manifest, ...] = ()
    adoptions: tuple[tuple[Manifest, Manifest], ...] = ()
    """Trials of users, and the labels and owner references that they lack."""
    statuses: tuple[tuple[Manifest, Manifest], ...] = ()
    """Trials as observed, and their new statuses."""
    revisions: tuple[Manifest, ...] = ()
    """ControllerRevisions to write."""
    deletes: tuple[Manifest, ...] = ()
    """Of both kinds."""
    in_force: str = ""
    """Name of the revision in force; empty where the spec alone decides."""

    @property
    def has_next_step(self) -> bool:
        """Whether the next step proceeds with new or adopted trials, or after one that ends."""
        is_ending = any(
            has_ended({"status": new}) and not has_ended(trial) for trial, new in self.statuses
        )
        return bool(self.creates or self.adoptions) or is_ending


NO_OBJECTS = TrialObjects()


def trial_objects(observed: Observed, step: Step, image: str) -> TrialObjects:
    """Compare the observed SpecDecodeTrials and revisions with the state of trials.

    Args:
        image: engine image where the spec names none.
    """
    owner, record = step.now.resource, step.record
    now_s = observed.at.timestamp()
    old_trials = surplus_trials(observed.trials)
    kept = [each for each in observed.trials if each not in old_trials]
    found = revision_in_force(observed, step, image)
    live = [each for each in kept if not each["metadata"].get("deletionTimestamp")]
    return TrialObjects(
        creates=_creates(observed, record, owner),
        adoptions=tuple((each, _owned(owner)) for each in live if controller_of(each) is None),
        statuses=tuple(
            (each, status)
            for each in live
            if (status := _status(each, observed, record, owner, now_s)) is not None
            and _mark(status) != _mark(each.get("status") or {})
        ),
        revisions=_revisions(observed, step, found),
        deletes=(*old_trials, *_old_revisions(observed, found)),
        in_force=found.name if found else "",
    )


def revision_in_force(observed: Observed, step: Step, image: str) -> Revision | None:
    """The configuration in force as a revision; None where the spec alone has always decided.

    After the first trial there is one whatever decides, so that its absence shows a loss.
    """
    now, record = step.decided, step.record
    accepted, tuned = record.accepted, now.tuned
    known = list(readable(observed).values())
    if accepted is None and tuned is None and record.trial is None and not known:
        return None
    spec = accepted or accepted_part(observed.resource["spec"])
    table = tuned.table if tuned else {}
    found = revision(
        now.resource.name, next_number(known), pinned(spec, image), now.built.config_hash, table
    )
    before = next((each for each in known if each.name == found.name), None)
    if before is None:
        return found
    is_newest = before.number + 1 == found.number
    number = before.number if is_newest else found.number
    return rendered_as(replace(before, number=number), now.built.config_hash)


def _revisions(observed: Observed, step: Step, found: Revision | None) -> tuple[Manifest, ...]:
    if found is None or found in readable(observed).values():
        return ()
    return (revision_manifest(found, step.now.resource),)


def _old_revisions(observed: Observed, found: Revision | None) -> tuple[Manifest, ...]:
    in_use = frozenset({found.name} if found else ())
    surplus_names = {each.name for each in surplus(readable(observed).values(), in_use)}
    return tuple(each for each in observed.revisions if each["metadata"]["name"] in surplus_names)


def _creates(observed: Observed, record: Record, owner: Resource) -> tuple[Manifest, ...]:
    trial = record.trial
    if trial is None or trial.is_published or trial.phase.is_ending:
        return ()
    if any(each["metadata"]["name"] == trial.name for each in observed.trials):
        return ()
    candidate = candidate_of(
        spec_in_force(observed.resource["spec"], record.accepted), trial.target
    )
    manifest = {
        "apiVersion": TRIAL.api_version,
        "kind": TRIAL.kind,
        "metadata": {"name": trial.name, "namespace": owner.namespace, **_owned(owner)},
        "spec": {
            "deployment": owner.name,
            "candidate": candidate,
            "origin": trial.origin.value,
            "onSuccess": "Promote",
        },
    }
    return (manifest,)


def _owned(owner: Resource) -> Manifest:
    return {
        "labels": {names.LABEL_DEPLOYMENT: owner.name},
        "ownerReferences": [owner_reference(owner)],
    }


def _status(
    trial: Manifest, observed: Observed, record: Record, owner: Resource, now_s: float
) -> Manifest | None:
    """The status of a trial; None where the present one stays."""
    name, generation = trial["metadata"]["name"], trial["metadata"].get("generation", 1)
    running, ended = record.trial, record.ending_by_name(name)
    if running is not None and running.name == name:
        found = _running(running, owner, now_s)
    elif ended is not None:
        if not _is_in_force(trial, observed, ended, record):
            return None
        found = dict(ended.status)
    elif has_ended(trial):
        return None
    elif trial["spec"].get("origin", Origin.USER) == Origin.USER:
        found = _pending(trial["spec"], running)
    else:
        message = "the state of this trial is lost; what it tried may be tried again"
        found = {"phase": "Ended", "verdict": "Superseded", "reason": "StateLost"}
        found |= {"message": message, "endedAt": timestamp(now_s)}
    return {**found, "observedGeneration": generation}


def _is_in_force(trial: Manifest, observed: Observed, ended: EndedTrial, record: Record) -> bool:
    """Whether the promotion of an ended trial is stored; one that is not would be lost with it."""
    if ended.verdict != End.PROMOTED or record.promoted_by != ended.name or has_promoted(trial):
        return True
    effective = (observed.resource.get("status") or {}).get("effective") or {}
    return bool(effective.get("trial") == ended.name)


def _pending(spec: Mapping[str, Any], running: Trial | None) -> Manifest:
    if spec.get("state") == "Paused":
        return {"phase": "Paused", "reason": "PausedByHand", "message": "paused by a user"}
    if running is not None:
        what = f"trial {running.name or running.target.id}"
        return {"phase": "Pending", "reason": "Waiting", "message": f"waits for the end of {what}"}
    message = "waits for replicas above 0, and for other trials that were created before"
    return {"phase": "Pending", "reason": "Waiting", "message": message}


def _running(trial: Trial, owner: Resource, now_s: float) -> Manifest:
    guard = guard_of(guarded_as(owner.spec.rollout, trial.guard), trial)
    block = _block(trial, guarded_timing(owner.spec.rollout, trial))
    return (
        progress(trial)
        | ({"block": block} if block else {})
        | {
            "phase": "Paused" if trial.is_paused else trial.phase.value,
            "message": (trial.blocked_by or (trial.judgement.message if trial.judgement else ""))[
                :1024
            ],
            "evidence": verdict_record.write(trial, trial.evidence, guard, now_s),
            "state": state_of(trial),
        }
    )


def _mark(status: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes it worth to write a status: not every second of measuring."""
    is_pending = status.get("phase") == "Pending"
    return (
        *(status.get(name) for name in ("phase", "verdict", "reason", "observedGeneration")),
        status.get("measuredSeconds", 0) // STATUS_EVERY_S,
        status.get("message") if is_pending else None,
        status.get("state"),
        (status.get("evidence") or {}).get("evidence"),
        _block_mark(status.get("block") or {}),
    )


def _block(trial: Trial, timing: TrialTiming) -> Manifest:
    """The present block of a trial that restarts pods; empty outside of blocks."""
    if not block_pods.in_block(trial):
        return {}
    period = trial.period
    end_s = None if period.counted_s is None else restarts.border_s(trial, timing)
    times = {"since": period.began_s, "countedSince": period.counted_s, "nextChange": end_s}
    return {
        "pair": period.pair,
        "arm": block_pods.role_now(trial).value.capitalize(),
        **{name: timestamp(at_s) for name, at_s in times.items() if at_s is not None},
    }


def _block_mark(block: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(block.get(name) for name in ("pair", "arm", "nextChange"))
