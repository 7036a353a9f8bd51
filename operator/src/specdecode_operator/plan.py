"""Decides what to write and what to remove: (observed, settings) to a plan, without I/O."""

from dataclasses import dataclass
from enum import StrEnum

from specdecode_api import names
from specdecode_api.speculation import not_yet_available
from specdecode_api.v1alpha1 import ModelStatus
from specdecode_operator import children, downloads, matching
from specdecode_operator.kinds import CONFIG_MAP, DEPLOYMENT, DISRUPTION_BUDGET, ChildId, Manifest
from specdecode_operator.kinds import child_id as identify
from specdecode_operator.observed import Observed, is_controlled_by
from specdecode_operator.pace import SURGE, Pace, pace
from specdecode_operator.resource import Resource, ResourceError, parse_stored
from specdecode_operator.rollout import Rollout, rollout
from specdecode_operator.settings import Settings


class Cause(StrEnum):
    """Why a child is written."""

    MISSING = "missing"
    CHANGED = "changed"
    DRIFTED = "drifted"


class Refusal(StrEnum):
    """Why a spec is not carried out; also the reason in the condition."""

    INVALID = "Invalid"
    NOT_AVAILABLE = "NotAvailable"


@dataclass(frozen=True, slots=True)
class Write:
    """A child to be written. Not `is_present` means: look for a stranger of that name first."""

    manifest: Manifest
    cause: Cause
    is_present: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A spec that is not carried out, with sentences for the user."""

    reason: Refusal
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do about one resource now."""

    config_hash: str | None = None
    writes: tuple[Write, ...] = ()
    prunes: tuple[Manifest, ...] = ()
    models: tuple[ModelStatus, ...] = ()
    """How far the models are that the pods fetch."""
    refused: Refused | None = None
    is_ending: bool = False
    pace: Pace = SURGE
    ignored: tuple[str, ...] = ()
    """Fields of the spec that this operator is too old to know."""


def plan(observed: Observed, settings: Settings) -> Plan:
    """Compare what is with what should be.

    A refused spec plans nothing: the children of the last good one are left as they are.
    """
    if observed.resource["metadata"].get("deletionTimestamp"):
        return Plan(is_ending=True)
    try:
        resource = parse_stored(observed.resource)
        pins = downloads.pins(observed, resource)
        built = children.build(resource, settings.engine_image, pins)
        way = pace(observed, resource, built.config_hash)
        if way.is_in_place:
            built = children.build(resource, settings.engine_image, pins, is_in_place=True)
    except ResourceError as error:
        return Plan(refused=Refused(Refusal.INVALID, error.sentences))
    if missing := missing_in_release(resource):
        return Plan(refused=Refused(Refusal.NOT_AVAILABLE, missing))
    is_known = observed.resource.get("status", {}).get("observedGeneration") == resource.generation
    writes = (_write(observed, child, is_known) for child in built.children)
    return Plan(
        config_hash=built.config_hash,
        writes=tuple(write for write in writes if write is not None),
        prunes=tuple(_prunes(observed, built)),
        models=tuple(downloads.statuses(observed, resource, pins)),
        pace=way,
        ignored=resource.ignored,
    )


def missing_in_release(resource: Resource) -> tuple[str, ...]:
    """Sentences about what the contract allows and this release's engine cannot do yet."""
    wanted = resource.spec.speculation
    return not_yet_available(wanted.algorithm, wanted.adaptive.policy, wanted.topk)


def _write(observed: Observed, desired: Manifest, is_known: bool) -> Write | None:
    """The write a child needs, if any.

    The stamped hash tells that the desire changed, a removal included; the comparison tells that
    the live object was changed. A child that is gone although this generation was reported on
    before was taken away by somebody.
    """
    live = observed.children.get(identify(desired))
    if live is None or not is_controlled_by(live, observed.uid):
        was_there = is_known and _was_reported(observed, desired)
        return Write(desired, Cause.DRIFTED if was_there else Cause.MISSING, is_present=False)
    stamp = (live["metadata"].get("annotations") or {}).get(names.ANNOTATION_DESIRED_HASH)
    if stamp != desired["metadata"]["annotations"][names.ANNOTATION_DESIRED_HASH]:
        is_drift = stamp is None and is_known
        return Write(desired, Cause.DRIFTED if is_drift else Cause.CHANGED, is_present=True)
    if not matching.contains(live, desired):
        return Write(desired, Cause.DRIFTED, is_present=True)
    return None


def _was_reported(observed: Observed, desired: Manifest) -> bool:
    status = observed.resource.get("status") or {}
    return bool(status.get("configHash")) and _hash_of(desired) in (None, status["configHash"])


def _hash_of(manifest: Manifest) -> str | None:
    annotations = manifest["metadata"].get("annotations") or {}
    return annotations.get(names.ANNOTATION_CONFIG_HASH)


def _prunes(observed: Observed, built: children.Built) -> list[Manifest]:
    """Owned children that nobody needs: a budget without replicas, boot files without pods."""
    desired = {identify(child) for child in built.children}
    needed = _needed_hashes(observed, built.config_hash)
    return [
        live
        for child, live in observed.children.items()
        if child not in desired
        and is_controlled_by(live, observed.uid)
        and (
            child.kind == DISRUPTION_BUDGET.kind
            or (
                (child.kind == CONFIG_MAP.kind and needed is not None)
                and _hash_of(live) not in (needed or ())
            )
        )
    ]


def _needed_hashes(observed: Observed, desired_hash: str) -> set[str | None] | None:
    """Hashes whose boot file some pod uses or may be started with; None while that is open.

    Until the Deployment runs the desired template alone, its older pods may be replaced by equal
    ones at any time, on another node for instance.
    """
    name = observed.resource["metadata"]["name"]
    live = observed.children.get(ChildId(DEPLOYMENT.kind, name))
    if live is None or _hash_of(live["spec"]["template"]) != desired_hash:
        return None
    if rollout(live) is not Rollout.COMPLETE:
        return None
    return {desired_hash, *(_hash_of(pod) for pod in observed.pods)}
