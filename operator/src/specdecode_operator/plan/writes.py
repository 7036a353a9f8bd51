"""Compares an owned object with the live one: which write it needs, and why. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from specdecode_api import names
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.kinds import child_id as identify
from specdecode_operator.objects.observed import Observed, is_controlled_by
from specdecode_operator.objects.parts import Failures, Part
from specdecode_operator.plan import matching


class Cause(StrEnum):
    """Why an owned object is written."""

    MISSING = "missing"
    CHANGED = "changed"
    DRIFTED = "drifted"


@dataclass(frozen=True, slots=True)
class Write:
    """An owned object to write. If not `is_present`, an unowned object may have its name."""

    manifest: Manifest
    cause: Cause
    is_present: bool


def needed_writes(
    observed: Observed, desired: Iterable[Manifest], failures: Failures, *, is_known: bool
) -> tuple[Write, ...]:
    """The writes that owned objects need.

    Args:
        failures: collects exceptions of comparisons; such an object is written.
        is_known: whether the status already reported this generation.
    """
    found = (_write(observed, each, failures, is_known=is_known) for each in desired)
    return tuple(write for write in found if write is not None)


def is_reported(observed: Observed) -> bool:
    """Whether the status already reported this generation."""
    status = observed.resource.get("status") or {}
    return bool(status.get("observedGeneration") == observed.resource["metadata"].get("generation"))


def hash_of(manifest: Manifest) -> str | None:
    """The config hash in the annotations of an object."""
    annotations = manifest["metadata"].get("annotations") or {}
    return annotations.get(names.ANNOTATION_CONFIG_HASH)


def _write(
    observed: Observed, desired: Manifest, failures: Failures, *, is_known: bool
) -> Write | None:
    """The write that an owned object needs, if any.

    The stamped hash detects a change of the desired object, removed fields included; the
    comparison detects a change of the live object. An object that is missing although the status
    already reported this generation was deleted by others.
    """
    live = observed.children.get(identify(desired))
    if live is None or not is_controlled_by(live, observed.uid):
        was_there = is_known and _was_reported(observed, desired)
        return Write(desired, Cause.DRIFTED if was_there else Cause.MISSING, is_present=False)
    stamp = (live["metadata"].get("annotations") or {}).get(names.ANNOTATION_DESIRED_HASH)
    if stamp != desired["metadata"]["annotations"][names.ANNOTATION_DESIRED_HASH]:
        is_drift = stamp is None and is_known
        return Write(desired, Cause.DRIFTED if is_drift else Cause.CHANGED, is_present=True)
    what = f"{desired['kind']} {desired['metadata']['name']}"
    is_same = failures.attempt(
        Part.DRIFT, what, lambda: matching.is_subset(desired, live), otherwise=False
    )
    return None if is_same else Write(desired, Cause.DRIFTED, is_present=True)


def _was_reported(observed: Observed, desired: Manifest) -> bool:
    status = observed.resource.get("status") or {}
    return bool(status.get("configHash")) and hash_of(desired) in (None, status["configHash"])
