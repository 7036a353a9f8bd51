"""Reads from pods why an engine does not serve: the first trouble, in words for the user."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from specdecode_api import names
from specdecode_operator.kinds import Manifest
from specdecode_operator.rollout import condition

MAX_MESSAGE = 1000

_IMAGE_REASONS = frozenset(
    {
        "ErrImagePull",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        "ImageInspectError",
        "RegistryUnavailable",
    }
)
_CREATE_REASONS = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why pods do not serve. `is_fault` tells a fault from a wait for capacity or data."""

    reason: str
    message: str
    is_fault: bool


def config_hash_of(pod: Manifest) -> str | None:
    """Config hash with which a pod was made."""
    annotations = pod["metadata"].get("annotations") or {}
    return annotations.get(names.ANNOTATION_CONFIG_HASH)


def is_ready(pod: Manifest) -> bool:
    """Whether a pod is routable."""
    is_ending = pod["metadata"].get("deletionTimestamp") is not None
    return not is_ending and condition(pod, "Ready").get("status") == "True"


def trouble(pods: Iterable[Manifest], config_hash: str | None) -> Trouble | None:
    """The trouble of the newest configuration's pods, or else of the others."""
    alive = [pod for pod in pods if pod["metadata"].get("deletionTimestamp") is None]
    alive.sort(key=lambda pod: (config_hash_of(pod) != config_hash, pod["metadata"]["name"]))
    found = (_trouble_of(pod) for pod in alive)
    return next((each for each in found if each is not None), None)


def _trouble_of(pod: Manifest) -> Trouble | None:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return _unscheduled(scheduled.get("message") or "no node takes the pod")
    status = pod.get("status") or {}
    for container in status.get("containerStatuses") or ():
        if container["name"] == names.ENGINE_CONTAINER:
            return _container_trouble(container)
    if status.get("phase") == "Failed":
        message = status.get("message") or "the pod failed"
        return Trouble(status.get("reason") or "PodFailed", _cut(message), is_fault=True)
    return None


def _unscheduled(message: str) -> Trouble:
    text = message.lower()
    if "persistentvolumeclaim" in text:
        is_missing = "not found" in text
        reason = "ModelClaimMissing" if is_missing else "ModelClaimPending"
        remedy = "; create the claim that model.uri or draft.uri names" if is_missing else ""
        return Trouble(reason, _cut(message + remedy), is_fault=is_missing)
    reason = "InsufficientGPU" if "nvidia.com/gpu" in text else "Unschedulable"
    return Trouble(reason, _cut(message), is_fault=False)


def _container_trouble(container: dict[str, Any]) -> Trouble | None:
    state = container.get("state") or {}
    waiting = state.get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE_REASONS:
        text = f"cannot pull {container.get('image', 'the image')}: {message or reason}"
        return Trouble("ImagePullFailed", _cut(text), is_fault=True)
    if reason in _CREATE_REASONS:
        return Trouble("ContainerCannotStart", _cut(f"{reason}: {message}"), is_fault=True)
    if container.get("ready"):
        return None
    ended = state.get("terminated") or (container.get("lastState") or {}).get("terminated")
    if ended and ended.get("exitCode") != 0:
        return Trouble("EngineCrashing", _cut(_last_words(ended)), is_fault=True)
    return None


def _last_words(ended: dict[str, Any]) -> str:
    if ended.get("reason") == "OOMKilled":
        how = "was killed for memory (OOMKilled); raise resources.limits.memory"
    else:
        how = f"ended with exit code {ended.get('exitCode')}"
    said = (ended.get("message") or "").strip()
    return f"engine {how}" + (f": {said}" if said else "")


def _cut(text: str) -> str:
    """Keep the end of long text: an engine's last words come last."""
    return text if len(text) <= MAX_MESSAGE else f"…{text[-MAX_MESSAGE + 1 :]}"
