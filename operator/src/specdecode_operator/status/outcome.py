"""The result of acting on a plan: objects written and removed, and the first block."""

from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from specdecode_api import names
from specdecode_operator.objects.kinds import INFERENCE_POOL, ChildId, Manifest
from specdecode_operator.objects.observed import Observed, controller_of


class BlockReason(StrEnum):
    """Why acting on a plan stopped; also the reason in the condition."""

    NAME_CONFLICT = "NameConflict"
    WAITING_FOR_GARBAGE_COLLECTION = "WaitingForGarbageCollection"
    APPLY_FAILED = "ApplyFailed"
    IMAGE_VOLUMES_OFF = "ImageVolumesOff"
    TEMPLATE_REJECTED = "TemplateRejected"
    CRD_NOT_INSTALLED = "CRDNotInstalled"
    FORBIDDEN = "Forbidden"


@dataclass(frozen=True, slots=True)
class Blocked:
    """The reason for which acting stopped, and the message of the condition."""

    reason: BlockReason
    message: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was written and removed, and what blocked the rest."""

    written: tuple[Manifest, ...] = ()
    removed: tuple[ChildId, ...] = ()
    blocked: Blocked | None = None
    is_state_stored: bool = True
    """Whether SpecDecodeTrials and revisions were written; otherwise the status must not change."""
    trial_error: str = ""
    """Why an object of a trial was not written; everything else was."""
    token_error: str = ""
    """Why the token of routers was not written; everything else was."""
    pool: Blocked | None = None
    """Why the InferencePool was not written or removed; everything else was."""


def blocked_by(live: Manifest, observed: Observed) -> Blocked:
    """Classify an unowned object: of a previous incarnation of the resource, or of others."""
    kind, name = live["kind"], live["metadata"]["name"]
    owner = controller_of(live) or {}
    name_of_resource = observed.resource["metadata"]["name"]
    if (owner.get("kind"), owner.get("name")) == (names.KIND, name_of_resource):
        message = (
            f"{kind} {name} belongs to a deleted resource of this name; waiting for its deletion"
        )
        return Blocked(BlockReason.WAITING_FOR_GARBAGE_COLLECTION, message)
    message = (
        f"{kind} {name} exists and is not controlled by this resource, so it is not changed; "
        "delete it, or choose another name for the resource"
    )
    return Blocked(BlockReason.NAME_CONFLICT, message)


def pool_blocked_by(code: int, error: str) -> Blocked:
    """Classify the error with which the API server refuses an InferencePool."""
    plural = f"{INFERENCE_POOL.plural}.{INFERENCE_POOL.group}"
    if code == HTTPStatus.NOT_FOUND:
        message = (
            f"the API server does not serve {plural} {INFERENCE_POOL.version}; install the CRDs of "
            "the Gateway API Inference Extension, or remove spec.inferencePool"
        )
        return Blocked(BlockReason.CRD_NOT_INSTALLED, message)
    if code == HTTPStatus.FORBIDDEN:
        verbs = ", ".join(INFERENCE_POOL.verbs)
        message = (
            f"{error}; grant the operator's service account {verbs} on {plural}, as the chart does "
            "with inferencePool.enabled: true, or comply with the policy that the message names"
        )
        return Blocked(BlockReason.FORBIDDEN, message)
    return Blocked(BlockReason.APPLY_FAILED, error)
