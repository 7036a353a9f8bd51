"""Finds what serves after a loss of state: a restored resource, a cut status, deleted revisions.

Usually `status.effective` names the ControllerRevision in force. Where it does not, or where that
revision is gone, the config hash of the Deployment decides: a revision explains it, or the spec
does, or nothing does. In the last case nothing may be rolled, because the spec may be one that a
trial has rejected. The Deployment names its revision too, which shows the loss of all else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specdecode_api import names
from specdecode_operator import owned
from specdecode_operator.objects.kinds import DEPLOYMENT
from specdecode_operator.objects.merge_patch import difference
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.resource import Resource
from specdecode_operator.objects.rollout import hash_of_template, template_annotations
from specdecode_operator.trial.record.configuration import accepted_part
from specdecode_operator.trial.record.overrides import overrides_of
from specdecode_operator.trial.record.record import Record, Tuned
from specdecode_operator.trial.record.revisions import Revision, explaining, pinned
from specdecode_operator.trial.record.state import Origin
from specdecode_operator.trial.steps.exploration import recovered


@dataclass(frozen=True, slots=True)
class Recovery:
    """The record after a loss, or the message of condition StateLost."""

    record: Record
    lost: str = ""


def recover(
    observed: Observed,
    resource: Resource,
    stored: Record,
    revisions: Mapping[str, Revision],
    image: str,
) -> Recovery:
    """Return the record with the configuration that serves.

    Args:
        stored: the record as it was read.
        revisions: ControllerRevisions by name.
        image: engine image where the spec names none.
    """
    if not (observed.resource.get("status") or {}).get("exploration") and not stored.spent:
        stored = recovered(stored, resource.spec, observed.at.timestamp())
    live = observed.owned(DEPLOYMENT)
    if live is None:
        return Recovery(stored)
    named = (live["metadata"].get("annotations") or {}).get(names.ANNOTATION_REVISION, "")
    is_guarded = resource.spec.rollout.edit_policy == "Guarded"
    if not _is_lost(observed, stored, revisions, named, is_guarded=is_guarded):
        return Recovery(stored)
    serving = hash_of_template(live)
    wanted = owned.build(resource, image).config_hash
    if serving is None or wanted == _accepted_hash(observed):
        return Recovery(stored)
    found = explaining(serving, revisions.values())
    # In a block of a trial the pods may run a candidate, which can be the spec's configuration.
    is_block = names.ANNOTATION_BLOCK in template_annotations(live)
    is_the_spec = found is None or found.spec == pinned(
        accepted_part(observed.resource["spec"]), image
    )
    if serving == wanted and is_the_spec and not is_block:
        return Recovery(stored)
    if found is not None:
        return Recovery(_in_force(observed, resource, stored, found, image))
    return Recovery(stored, _message(resource.name, serving, wanted, named, observed))


def _is_lost(
    observed: Observed,
    stored: Record,
    revisions: Mapping[str, Revision],
    named: str,
    *,
    is_guarded: bool,
) -> bool:
    """Whether it is unknown which revision is in force, or in the place of which fields.

    A resource without trials has no `effective`: there its spec is in force, as long as some other
    status shows that it was never anything else, and its Deployment names no revision.

    Args:
        named: the revision that the Deployment names; empty where it names none.
    """
    status = observed.resource.get("status") or {}
    effective = status.get("effective")
    if not effective:
        is_new = not status.get("configHash")
        return is_new or bool(named) or _has_had_trials(observed, revisions)
    reason = effective.get("reason")
    if reason == "FollowsSpec" and not is_guarded:
        return False
    if reason == "Promoted" and not (effective.get("overrides") or effective.get("tableFor")):
        return True
    is_known = stored.accepted is not None or stored.tuned is not None
    return effective.get("revision") not in revisions and not is_known


def _has_had_trials(observed: Observed, revisions: Mapping[str, Revision]) -> bool:
    """Whether any trial has begun, since when `effective` is reported."""
    last = (observed.resource.get("status") or {}).get("lastTrial") or {}
    begun = (bool((each.get("status") or {}).get("startedAt")) for each in observed.trials)
    return bool(revisions) or last.get("verdict", "Aborted") != "Aborted" or any(begun)


def _accepted_hash(observed: Observed) -> str:
    annotations = observed.resource["metadata"].get("annotations") or {}
    return str(annotations.get(names.ANNOTATION_ACCEPT_SPEC, ""))


def _in_force(
    observed: Observed, resource: Resource, stored: Record, found: Revision, image: str
) -> Record:
    """The record with a revision in force; what the spec has in its place waits for an edit."""
    spec = observed.resource["spec"]
    part = pinned(accepted_part(spec), image)
    changed: dict[str, Any] = difference(part, dict(found.spec))
    record = replace(stored, accepted=found.spec, overrides=overrides_of(spec, changed))
    if not found.table:
        return record
    accepted = replace(resource, spec=type(resource.spec).from_resource({**spec, **found.spec}))
    arm = owned.build(accepted, image).arm
    return replace(record, tuned=Tuned(found.table, arm, Origin.USER))


def _message(name: str, serving: str, wanted: str, named: str, observed: Observed) -> str:
    status = observed.resource.get("status") or {}
    revision = (status.get("effective") or {}).get("revision") or named
    which = f"ControllerRevision {revision}" if revision else "its ControllerRevision"
    namespace = observed.resource["metadata"]["namespace"]
    why = f"which neither the spec ({wanted}) nor a ControllerRevision explains"
    if serving == wanted:
        why = "which a trial may have been trying when its state was lost"
    return (
        f"Deployment {name} runs configuration {serving}, {why}, so nothing is rolled; "
        f"restore {which} from a backup to keep what serves, or put the spec in force: "
        f"kubectl annotate {names.SHORT_NAME} {name} -n {namespace} "
        f"{names.ANNOTATION_ACCEPT_SPEC}={wanted}"
    )
