"""Derives from pods why an engine does not serve: the first problem, as a message."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from specdecode_api import names
from specdecode_api.report import (
    MODEL_REASONS,
    ModelReport,
    ModelState,
    Progress,
    TerminationMessage,
    TerminationReason,
)
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.rollout import condition
from specdecode_operator.objects.times import seconds_since

MAX_MESSAGE = 1000

MOUNTING_S = 60.0
"""How long a pod may take to mount its volumes before this is reported."""

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
    """Why pods do not serve. `is_error` distinguishes errors from waiting for capacity or data."""

    reason: str
    message: str
    is_error: bool
    is_about_model: bool = False
    is_restarted: bool = False
    """The container crashed once and runs again, so that no repair is needed yet."""
    waits_for_claim: bool = False
    """A PVC is not mounted, which an old engine on another node may use."""


def config_hash_of(pod: Manifest) -> str | None:
    """Config hash of a pod."""
    annotations = pod["metadata"].get("annotations") or {}
    return annotations.get(names.ANNOTATION_CONFIG_HASH)


def has_ended(pod: Manifest) -> bool:
    """Whether no container of a pod starts again, as after an eviction.

    Such a pod stays until somebody deletes it; its ReplicaSet has made another one.
    """
    return (pod.get("status") or {}).get("phase") in ("Failed", "Succeeded")


def is_active(pod: Manifest) -> bool:
    """Whether a pod counts as a replica: it is not terminating, and has not ended."""
    return not _is_terminating(pod) and not has_ended(pod)


def is_ready(pod: Manifest) -> bool:
    """Whether a pod is ready and not terminating."""
    return is_active(pod) and condition(pod, "Ready").get("status") == "True"


def is_stable(pod: Manifest) -> bool:
    """Whether a pod is of the resource's own Deployment."""
    labels = pod["metadata"].get("labels") or {}
    return bool(labels.get(names.LABEL_ROLE, names.ROLE_STABLE) == names.ROLE_STABLE)


def is_scheduled(pod: Manifest) -> bool:
    """Whether a pod is scheduled to a node."""
    return condition(pod, "PodScheduled").get("status") == "True"


def lacks_room(pod: Manifest) -> bool:
    """Whether no node has sufficient resources for a pod."""
    scheduled = condition(pod, "PodScheduled")
    is_refused = scheduled.get("status") == "False"
    return is_refused and "insufficient " in (scheduled.get("message") or "").lower()


def waits_for_claim(pod: Manifest) -> bool:
    """Whether a scheduled pod does not have its volumes yet, a PVC among them.

    A ReadWriteOnce PVC is not mounted while a pod on another node uses it.
    """
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return _is_mounting(pod) and any("persistentVolumeClaim" in each for each in volumes)


def nominated_node(pod: Manifest) -> str:
    """The node that the scheduler or an autoscaler has chosen, and that does not have room yet."""
    return str((pod.get("status") or {}).get("nominatedNodeName") or "")


def patience_left_s(pods: Iterable[Manifest], at: datetime) -> float | None:
    """Seconds until a mounting pod exceeds its time; None if no pod is mounting."""
    left_s = (
        MOUNTING_S - _changed_s(condition(pod, "PodScheduled"), at)
        for pod in pods
        if _is_mounting(pod)
    )
    return min((each for each in left_s if each > 0), default=None)


def restarts(pod: Manifest) -> int:
    """Restart count of a pod's engine."""
    status = pod.get("status") or {}
    engine = _container(status, "containerStatuses", names.ENGINE_CONTAINER)
    return int(engine.get("restartCount", 0))


def is_fetching(pod: Manifest) -> bool:
    """Whether a pod is downloading models."""
    return is_active(pod) and "running" in _state(_fetch_container(pod))


def reports(pod: Manifest, progress: Mapping[str, Progress]) -> tuple[ModelReport, ...]:
    """Model reports of a pod: its response, or its termination message."""
    if is_fetching(pod):
        answered = progress.get(pod["metadata"]["name"])
        return answered.models if answered is not None else ()
    words = _words(_ended(_fetch_container(pod)))
    return words.models if words is not None else ()


def describe(report: ModelReport) -> str:
    """Format the progress of a model as a message."""
    if report.state is ModelState.WAITING:
        return f"{report.role}: another pod downloads it to the same PVC"
    if report.state is ModelState.DOWNLOADING and report.bytes_total:
        percent = 100 * report.bytes_done // report.bytes_total
        amount = describe_bytes(report.bytes_done, report.bytes_total)
        return f"{report.role}: {amount} ({percent} %)"
    return f"{report.role}: {report.state.lower()}"


def describe_bytes(done: int, total: int) -> str:
    """Format how much of a number of bytes is done."""
    unit, name = (1e9, "GB") if total >= 1e9 else (1e6, "MB")
    return f"{done / unit:.2f} of {total / unit:.2f} {name}"


def trouble(
    pods: Iterable[Manifest],
    config_hash: str | None,
    progress: Mapping[str, Progress],
    at: datetime,
) -> Trouble | None:
    """The first problem of the newest configuration's pods, or else of the others.

    Why a pod failed counts until a younger pod is ready.
    """
    listed = [pod for pod in pods if not _is_terminating(pod)]
    youngest = max((_created(pod) for pod in listed if is_ready(pod)), default="")
    kept = [pod for pod in listed if is_active(pod) or _created(pod) >= youngest]
    kept.sort(key=lambda pod: (config_hash_of(pod) != config_hash, pod["metadata"]["name"]))
    found = (_trouble_of(pod, progress, at) for pod in kept)
    return next((each for each in found if each is not None), None)


def _is_terminating(pod: Manifest) -> bool:
    return pod["metadata"].get("deletionTimestamp") is not None


def _created(pod: Manifest) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _trouble_of(pod: Manifest, progress: Mapping[str, Progress], at: datetime) -> Trouble | None:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return _unscheduled(pod, scheduled.get("message") or "the pod is unschedulable")
    status = pod.get("status") or {}
    if status.get("phase") == "Failed":
        return _failed(status)
    if is_fetching(pod):
        return _fetching(pod, progress)
    for container in (
        _fetch_container(pod),
        _container(status, "containerStatuses", names.ENGINE_CONTAINER),
    ):
        found = _container_trouble(container) if container else None
        if found is not None:
            return found
    if _is_mounting(pod) and _changed_s(scheduled, at) >= MOUNTING_S:
        return _not_mounted(pod)
    return None


def _is_mounting(pod: Manifest) -> bool:
    """Whether a pod is scheduled and has no sandbox yet, which is created after mounting volumes.

    Kubernetes before 1.29 has no such condition; image pulls come after mounting.
    """
    is_started = condition(pod, "PodReadyToStartContainers").get("status") != "False"
    return not is_started and is_scheduled(pod) and is_active(pod)


def _changed_s(change: Mapping[str, Any], at: datetime) -> float:
    return seconds_since(change, "lastTransitionTime", at)


def _not_mounted(pod: Manifest) -> Trouble:
    found = ", ".join(_mounted(pod)) or "its volumes"
    text = (
        f"pod {pod['metadata']['name']} has waited for its volumes for more than "
        f"{MOUNTING_S:.0f} s: make sure that {found} exist and can be mounted on its node; "
        "kubectl describe pod shows which one fails"
    )
    is_claim = waits_for_claim(pod)
    return Trouble("VolumesNotMounted", _cut(text), is_error=True, waits_for_claim=is_claim)


def _mounted(pod: Manifest) -> Iterator[str]:
    """Names of the objects in a pod's volumes."""
    for volume in pod["spec"].get("volumes") or ():
        match volume:
            case {"persistentVolumeClaim": {"claimName": name}}:
                yield f"PVC {name}"
            case {"secret": {"secretName": name, **rest}} if not rest.get("optional"):
                yield f"Secret {name}"
            case {"configMap": {"name": name}}:
                yield f"ConfigMap {name}"
            case {"hostPath": {"path": path}}:
                yield f"folder {path} on the node"
            case {"image": {"reference": reference}}:
                yield f"image {reference}"


def _container(part: Mapping[str, Any], field: str, name: str) -> dict[str, Any]:
    """A container of a pod, or its status; empty if there is none."""
    listed = part.get(field) or ()
    return next((each for each in listed if each["name"] == name), {})


def _fetch_container(pod: Manifest) -> dict[str, Any]:
    status = pod.get("status") or {}
    return _container(status, "initContainerStatuses", names.FETCH_CONTAINER)


def _state(container: Mapping[str, Any]) -> dict[str, Any]:
    return container.get("state") or {}


def _ended(container: Mapping[str, Any]) -> dict[str, Any]:
    """The latest termination of a container; empty if there is none."""
    last = container.get("lastState") or {}
    return _state(container).get("terminated") or last.get("terminated") or {}


def _words(ended: Mapping[str, Any]) -> TerminationMessage | None:
    return TerminationMessage.decode(ended.get("message") or "")


def _failed(status: Mapping[str, Any]) -> Trouble:
    message = status.get("message") or "the pod failed"
    if status.get("reason") == "Evicted" and "model-cache" in message:
        text = f"{message.strip()}; raise download.cacheSizeLimit or set download.cacheClaim"
        return Trouble(
            TerminationReason.OUT_OF_SPACE, _cut(text), is_error=True, is_about_model=True
        )
    return Trouble(status.get("reason") or "PodFailed", _cut(message), is_error=True)


def _fetching(pod: Manifest, progress: Mapping[str, Progress]) -> Trouble:
    """A running download; one that just restarted is still reported with its previous error."""
    found = reports(pod, progress)
    is_moving = any(
        report.state in (ModelState.DOWNLOADING, ModelState.WAITING) for report in found
    )
    if not is_moving:
        before = _container_trouble(_fetch_container(pod))
        if before is not None:
            return before
    text = "; ".join(map(describe, found)) or "no progress is available from the pod"
    return Trouble("Downloading", text, is_error=False, is_about_model=True)


def _unscheduled(pod: Manifest, message: str) -> Trouble:
    text = message.lower()
    if "persistentvolumeclaim" in text:
        is_missing = "not found" in text
        reason = "ModelPVCMissing" if is_missing else "ModelPVCPending"
        named = "model.uri, draft.uri or download.cacheClaim"
        remedy = f"; create the PVC named in {named}" if is_missing else ""
        return Trouble(reason, _cut(message + remedy), is_missing, is_about_model=True)
    accelerator = re.search(r"insufficient ([\w.-]+/[\w.-]*\w)", text)
    if accelerator:
        remedy = _remedy_of_room(accelerator[1], _limit(pod, accelerator[1]))
        return Trouble("InsufficientGPU", _cut(f"{message.rstrip('. ')}; {remedy}"), is_error=False)
    return Trouble("Unschedulable", _cut(message), is_error=False)


def _remedy_of_room(name: str, count: str) -> str:
    if count in ("", "1"):
        return f"free an {name}, or add a node that has one"
    return f"free {count} {name} on one node, or add a node that has as many"


def _limit(pod: Manifest, name: str) -> str:
    """How many of a resource the engine's container needs; empty if that is not known."""
    engine = _container(pod.get("spec") or {}, "containers", names.ENGINE_CONTAINER)
    return str(((engine.get("resources") or {}).get("limits") or {}).get(name, ""))


def _container_trouble(container: dict[str, Any]) -> Trouble | None:
    waiting = _state(container).get("waiting") or {}
    reason, message = waiting.get("reason", ""), waiting.get("message", "")
    if reason in _IMAGE_REASONS:
        text = f"cannot pull {container.get('image', 'the image')}: {message or reason}"
        return Trouble("ImagePullFailed", _cut(text), is_error=True)
    if reason in _CREATE_REASONS:
        return _not_created(container["name"], reason, message)
    ended = _ended(container)
    if container.get("ready") or not ended or ended.get("exitCode") == 0:
        return None
    words = _words(ended)
    if words is not None and ended.get("reason") != "OOMKilled":
        is_about_model = words.reason in MODEL_REASONS
        return Trouble(words.reason, _cut(words.message), True, is_about_model)
    is_engine = container["name"] == names.ENGINE_CONTAINER
    name = "EngineCrashing" if is_engine else "DownloadCrashing"
    return Trouble(
        name,
        _cut(_termination_text(container["name"], ended)),
        is_error=True,
        is_about_model=not is_engine,
        is_restarted="running" in _state(container) and container.get("restartCount", 0) == 1,
    )


_MISSING = (
    (r'secret "([^"]+)" not found', "SecretMissing", "Secret {0} does not exist: create it"),
    (
        r'configmap "([^"]+)" not found',
        "ConfigMapMissing",
        "ConfigMap {0} does not exist: create it",
    ),
    (
        r"couldn't find key (\S+) in Secret \S+?/(\S+)",
        "SecretKeyMissing",
        "Secret {1} has no key {0}: add it, or name another key",
    ),
    (
        r"couldn't find key (\S+) in ConfigMap \S+?/(\S+)",
        "ConfigMapKeyMissing",
        "ConfigMap {1} has no key {0}: add it, or name another key",
    ),
)


def _not_created(container: str, reason: str, message: str) -> Trouble:
    for pattern, name, sentence in _MISSING:
        found = re.search(pattern, message)
        if not found:
            continue
        explained = sentence.format(*found.groups())
        if container == names.FETCH_CONTAINER and name.startswith("Secret"):
            text = f"{explained}; it is named in download.tokenSecret or template.spec"
            return Trouble("TokenSecretMissing", _cut(text), is_error=True, is_about_model=True)
        return Trouble(name, _cut(f"{explained}; it is named in template.spec"), is_error=True)
    return Trouble("ContainerCannotStart", _cut(f"{reason}: {message}"), is_error=True)


def _termination_text(name: str, ended: dict[str, Any]) -> str:
    if ended.get("reason") == "OOMKilled":
        how = "ran out of memory (OOMKilled); raise resources.limits.memory"
    else:
        how = f"terminated with exit code {ended.get('exitCode')}"
    text = (ended.get("message") or "").strip()
    return f"{name} {how}" + (f": {text}" if text else "")


def _cut(text: str) -> str:
    """Keep the end of a long text, where an engine's error is."""
    return text if len(text) <= MAX_MESSAGE else f"…{text[-MAX_MESSAGE + 1 :]}"


def is_other_runtime(pod: Manifest) -> bool:
    """Whether a pod runs another engine than that of this project."""
    return names.LABEL_RUNTIME in (pod["metadata"].get("labels") or {})
