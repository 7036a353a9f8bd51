"""How far a Deployment has come, read from its status."""

import math
from collections.abc import Callable, Hashable, Mapping
from enum import StrEnum
from typing import Any

from specdecode_api import names
from specdecode_operator.objects.kinds import Manifest


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
    return replicas_of(limit, int(spec.get("replicas", 1)), math.floor)


def replicas_of(limit: int | str, replicas: int, rounded: Callable[[float], int]) -> int:
    """Replicas that a number or a percentage of all replicas stands for."""
    if isinstance(limit, int):
        return limit
    return rounded(replicas * int(limit.removesuffix("%")) / 100)


def template_annotations(deployment: Manifest) -> Mapping[str, str]:
    """Annotations of the pods that a Deployment makes."""
    annotations: Mapping[str, str] = deployment["spec"]["template"]["metadata"].get("annotations")
    return annotations or {}


def hash_of_template(deployment: Manifest) -> str | None:
    """Config hash of what the pods of a Deployment run: they may have exchanged their draft."""
    own = (deployment["metadata"].get("annotations") or {}).get(names.ANNOTATION_CONFIG_HASH)
    return own or template_annotations(deployment).get(names.ANNOTATION_CONFIG_HASH)


def condition(manifest: Manifest, kind: str) -> dict[str, Any]:
    """A condition of any object by type; empty where the object does not have it."""
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return next((found for found in conditions if found["type"] == kind), {})


class ImageRollouts:
    """The resources that replace their pods for a new default engine image, at most so many.

    Owned by the event loop. A new process learns of the rollouts under way as it reconciles.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._rolling: set[Hashable] = set()
        self._waiting: set[Hashable] = set()

    def note(self, key: Hashable, *, is_complete: bool, has_old_pods: bool) -> None:
        """Take note of a resource whose Deployment has the default image.

        A rollout counts from its first old pod until it is complete; one that is stuck keeps its
        place, so that an image that does not start stops the others.
        """
        self._waiting.discard(key)
        if is_complete:
            self._rolling.discard(key)
        elif has_old_pods:
            self._rolling.add(key)

    def forget(self, key: Hashable) -> None:
        """Drop a resource that is gone, or whose Deployment has another image."""
        self._rolling.discard(key)
        self._waiting.discard(key)

    def admit(self, key: Hashable) -> bool:
        """Whether a resource may roll now; it then counts until its rollout ends."""
        if key not in self._rolling and len(self._rolling) >= self._limit:
            self._waiting.add(key)
            return False
        self._rolling.add(key)
        return True

    def is_rolling(self, key: Hashable) -> bool:
        """Whether a resource was admitted, and its rollout has not ended."""
        return key in self._rolling

    def is_waiting(self, key: Hashable) -> bool:
        """Whether a resource waits for the rollouts of others."""
        return key in self._waiting
