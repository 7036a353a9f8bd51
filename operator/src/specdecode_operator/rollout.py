"""How far a Deployment has come, read from its status."""

from enum import StrEnum
from typing import Any

from specdecode_operator.kinds import Manifest


class Rollout(StrEnum):
    """State of a Deployment's rollout."""

    UNSEEN = "unseen"
    """The controller has not looked at the newest template yet."""
    MOVING = "moving"
    COMPLETE = "complete"
    STUCK = "stuck"
    """The progress deadline passed."""


def rollout(deployment: Manifest) -> Rollout:
    """State of the newest rollout of a Deployment."""
    status = deployment.get("status") or {}
    if status.get("observedGeneration", 0) < deployment["metadata"].get("generation", 1):
        return Rollout.UNSEEN
    wanted = deployment["spec"].get("replicas", 1)
    counts = [status.get(field, 0) for field in ("replicas", "updatedReplicas")]
    if all(count == wanted for count in counts) and status.get("availableReplicas", 0) >= wanted:
        return Rollout.COMPLETE
    progressing = condition(deployment, "Progressing")
    if progressing.get("reason") == "ProgressDeadlineExceeded":
        return Rollout.STUCK
    return Rollout.MOVING


def most_unavailable(deployment: Manifest) -> int:
    """How many replicas may be missing during a rollout; a percentage is rounded down."""
    spec = deployment.get("spec") or {}
    update = (spec.get("strategy") or {}).get("rollingUpdate") or {}
    limit = update.get("maxUnavailable", 0)
    if isinstance(limit, int):
        return limit
    return int(spec.get("replicas", 1)) * int(limit.removesuffix("%")) // 100


def condition(manifest: Manifest, kind: str) -> dict[str, Any]:
    """A condition of any object by type; empty where the object does not have it."""
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return next((found for found in conditions if found["type"] == kind), {})
