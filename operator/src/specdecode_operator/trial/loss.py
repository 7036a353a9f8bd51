"""Finds what serves after a loss of state: a restored resource, deleted revisions.

Usually `status.effective` names the ControllerRevision in force. Where it does not, or where that
revision is gone, the config hash of the Deployment decides: the spec explains it, or a revision
does, or nothing does. In the last case nothing may be rolled, because the spec may be one that a
trial has rejected.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from specdecode_api import names
from specdecode_operator import children
from specdecode_operator.kinds import DEPLOYMENT, ChildId
from specdecode_operator.merge_patch import difference
from specdecode_operator.observed import Observed, is_controlled_by
from specdecode_operator.resource import Resource
from specdecode_operator.rollout import hash_of_template, template_annotations
from specdecode_operator.trial.configuration import accepted_part
from specdecode_operator.trial.overrides import overrides_of
from specdecode_operator.trial.record import Record, Tuned
from specdecode_operator.trial.revisions import Revision, explaining, pinned
from specdecode_operator.trial.state import Origin


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
    if not _is_lost(observed, stored, revisions):
        return Recovery(stored)
    live = observed.children.get(ChildId(DEPLOYMENT.kind, resource.name))
    if live is None or not is_controlled_by(live, observed.uid):
        return Recovery(stored)
    serving = hash_of_template(live)
    wanted = children.build(resource, image).config_hash
    # In a block of a trial the pods may run a candidate, which can be the spec's configuration.
    is_block = names.ANNOTATION_BLOCK in template_annotations(live)
    is_in_force = serving is None or (serving == wanted and not is_block)
    if is_in_force or wanted == _accepted_hash(observed):
        return Recovery(stored)
    if found := explaining(str(serving), revisions.values()):
        return Recovery(_in_force(observed, resource, stored, found, image))
    return Recovery(stored, _message(resource.name, str(serving), wanted, observed))


def _is_lost(observed: Observed, stored: Record, revisions: Mapping[str, Revision]) -> bool:
    """Whether the revision in force is unknown: it or the whole status is gone."""
    status = observed.resource.get("status") or {}
    if effective := status.get("effective"):
        revision = effective.get("revision")
        is_known = stored.accepted is not None or stored.tuned is not None
        return bool(revision) and revision not in revisions and not is_known
    return not status.get("configHash")


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
    arm = children.build(accepted, image).arm
    return replace(record, tuned=Tuned(found.table, arm, Origin.USER))


def _message(name: str, serving: str, wanted: str, observed: Observed) -> str:
    status = observed.resource.get("status") or {}
    revision = (status.get("effective") or {}).get("revision")
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
