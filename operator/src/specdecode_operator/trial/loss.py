"""Detects that the state of trials was lost while a configuration other than the spec's serves."""

from specdecode_api import names
from specdecode_operator import children
from specdecode_operator.kinds import DEPLOYMENT, ChildId, Manifest
from specdecode_operator.observed import Observed, is_controlled_by
from specdecode_operator.resource import Resource
from specdecode_operator.trial.record import Record


def lost_state(observed: Observed, resource: Resource, stored: Record, image: str) -> str:
    """Message of condition StateLost; empty if what serves is explained.

    A guarded resource whose accepted configuration is unknown may have rejected its spec. So if its
    Deployment runs a configuration that is not the spec's, nothing may be rolled.
    """
    if resource.spec.rollout.edit_policy != "Guarded" or stored.accepted is not None:
        return ""
    live = observed.children.get(ChildId(DEPLOYMENT.kind, resource.name))
    if live is None or not is_controlled_by(live, observed.uid) or _was_immediate(observed):
        return ""
    serving = hash_of_template(live)
    wanted = children.build(resource, image).config_hash
    if serving in (None, wanted):
        return ""
    return (
        f"Deployment {resource.name} runs configuration {serving}, which neither the spec "
        f"({wanted}) nor a stored configuration explains, so nothing is rolled; restore ConfigMap "
        f"{children.record_name(resource.name)} from a backup to keep what serves, or set "
        "spec.rollout.editPolicy to Immediate to put the spec in force"
    )


def hash_of_template(deployment: Manifest) -> str | None:
    """Config hash of the pods that a Deployment makes."""
    annotations = deployment["spec"]["template"]["metadata"].get("annotations") or {}
    found = annotations.get(names.ANNOTATION_CONFIG_HASH)
    return str(found) if found else None


def _was_immediate(observed: Observed) -> bool:
    """Whether edits counted at once until now: a status without a configuration of trials."""
    status = observed.resource.get("status") or {}
    return bool(status.get("configHash")) and not status.get("effective")
