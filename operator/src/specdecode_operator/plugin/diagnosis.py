"""Diagnoses one custom resource from its status, pods and events."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

from specdecode_api import names
from specdecode_api.speculation import DEFAULT_STEPS
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import Manifest

MAX_EVENTS = 10
_BAD_IF_TRUE = frozenset({"Degraded", "Stalled", "StateLost"})
_NEITHER = frozenset({"Progressing", "Reconciling", "SpecOverridden", "RecommendationReady"})
"""Conditions of which no status is bad."""


@dataclass(frozen=True, slots=True)
class ConditionLine:
    """A condition; `is_good` is None if neither status is bad."""

    kind: str
    status: str
    reason: str
    message: str
    age_s: float | None
    is_good: bool | None


@dataclass(frozen=True, slots=True)
class PodLine:
    """A pod and its state."""

    name: str
    state: str
    is_ready: bool
    restarts: int
    config: str
    is_current: bool
    """Whether it runs the desired configuration."""
    node: str
    age_s: float | None
    why: str


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event about the resource, its Deployment or one of its pods."""

    age_s: float | None
    is_warning: bool
    reason: str
    about: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The content of `status NAME`."""

    namespace: str
    name: str
    age_s: float | None
    headline: str
    is_ready: bool
    why: str
    facts: tuple[tuple[str, str], ...]
    conditions: tuple[ConditionLine, ...] = ()
    pods: tuple[PodLine, ...] = ()
    events: tuple[EventLine, ...] = ()


def diagnose(
    resource: Manifest, found: Sequence[Manifest], events: Sequence[Manifest], now: datetime
) -> Diagnosis:
    """Diagnose a resource from its manifest, its pods and their events.

    Unknown and missing fields are tolerated: the cluster may be newer than the plugin.
    """
    metadata, spec = resource["metadata"], resource.get("spec") or {}
    status = resource.get("status") or {}
    wanted_hash = status.get("configHash")
    headline, is_ready, why = _headline(resource)
    pod_lines = tuple(_pod(each, wanted_hash, now) for each in found)
    return Diagnosis(
        namespace=metadata["namespace"],
        name=metadata["name"],
        age_s=age_s(metadata.get("creationTimestamp"), now),
        headline=headline,
        is_ready=is_ready,
        why=why,
        facts=_facts(spec, status, pod_lines),
        conditions=tuple(_condition(each, now) for each in status.get("conditions") or ()),
        pods=pod_lines,
        events=_events(events, now),
    )


def speculation_text(spec: Manifest) -> str:
    """One-line summary of the speculation of a resource."""
    wanted = spec.get("speculation") or {}
    algorithm = wanted.get("algorithm", "NONE")
    if algorithm == "NONE":
        return "NONE, no draft"
    adaptive = wanted.get("adaptive") or {}
    table = adaptive.get("batchSizes") or ()
    topk, steps = wanted.get("topk", 1), wanted.get("numSteps")
    shape = "chain" if topk == 1 else f"tree of topk {topk}"
    if table:
        steps_by_size = ", ".join(
            f"{entry['from']}: {'/'.join(map(str, entry.get('candidateSteps') or ()))}"
            for entry in sorted(table, key=itemgetter("from"))
        )
        policy = adaptive.get("policy", "Goodput")
        return f"{algorithm}, {shape}, steps by batch size ({policy}) {steps_by_size}"
    return f"{algorithm}, {shape}, {DEFAULT_STEPS if steps is None else steps} steps"


def age_s(text: str | None, now: datetime) -> float | None:
    """Seconds since a Kubernetes timestamp."""
    if not text:
        return None
    return max(0.0, (now - datetime.fromisoformat(text)).total_seconds())


def _headline(resource: Manifest) -> tuple[str, bool, str]:
    metadata, status = resource["metadata"], resource.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Being deleted", False, ""
    ready = _find(status.get("conditions") or (), "Ready")
    if not ready:
        why = (
            "no operator has reconciled it yet; is one running, and does it watch namespace "
            f"{metadata['namespace']}? kubectl get pods -A -l {names.LABEL_PART_OF}="
            f"{names.PART_OF},{names.LABEL_COMPONENT}=operator"
        )
        return "Not reconciled", False, why
    missed = metadata.get("generation", 0) - status.get("observedGeneration", 0)
    if missed > 0:
        why = f"the operator has not reconciled the latest {_count(missed, 'change')} of the spec"
        return f"Outdated; last state: {ready['reason']}", False, why
    is_ready = ready["status"] == "True"
    word = "Ready" if is_ready else "Not ready"
    return f"{word}: {ready['reason']}", is_ready, ready.get("message", "")


def _facts(
    spec: Manifest, status: Manifest, found: Sequence[PodLine]
) -> tuple[tuple[str, str], ...]:
    draft = ((spec.get("speculation") or {}).get("draft") or {}).get("uri")
    ready, wanted = status.get("readyReplicas", 0), spec.get("replicas", 1)
    config = status.get("configHash")
    current = sum(each.is_current for each in found)
    facts = [
        ("Model", (spec.get("model") or {}).get("uri", "")),
        ("Draft", draft or ""),
        ("Speculation", speculation_text(spec)),
        ("Replicas", f"{ready} of {wanted} ready, on {device_text(spec)}"),
        ("Config", f"{config}, run by {current} of {_count(len(found), 'pod')}" if config else ""),
        ("Endpoint", (status.get("address") or {}).get("url", "")),
        ("Trial", status.get("activeTrial") or ""),
        ("In force", (status.get("effective") or {}).get("message", "")),
        ("Last trial", _last_trial(status.get("lastTrial") or {})),
    ]
    return tuple((label, text) for label, text in facts if text)


def device_text(spec: Manifest) -> str:
    """The device of an engine, and among how many ranks it divides the target."""
    device = str((spec.get("engine") or {}).get("device", "GPU"))
    tensor = (spec.get("parallelism") or {}).get("tensor", 1)
    if tensor == 1:
        return device
    return f"{tensor} GPUs each" if device == "GPU" else f"{device}, {tensor} ranks each"


def _last_trial(last: Manifest) -> str:
    return f"{last['name']} {last['verdict']} ({last.get('reason', '')})" if last else ""


def _condition(condition: dict[str, Any], now: datetime) -> ConditionLine:
    kind, status = condition["type"], condition["status"]
    good = "False" if kind in _BAD_IF_TRUE else "True"
    return ConditionLine(
        kind=kind,
        status=status,
        reason=condition.get("reason", ""),
        message=condition.get("message", ""),
        age_s=age_s(condition.get("lastTransitionTime"), now),
        is_good=None if kind in _NEITHER or status == "Unknown" else status == good,
    )


def _pod(pod: Manifest, wanted_hash: str | None, now: datetime) -> PodLine:
    status = pod.get("status") or {}
    config = pods.config_hash_of(pod) or ""
    trouble = pods.trouble([pod], wanted_hash, {}, now)
    containers = status.get("containerStatuses") or ()
    return PodLine(
        name=pod["metadata"]["name"],
        state=pod_state(pod),
        is_ready=pods.is_ready(pod),
        restarts=sum(each.get("restartCount", 0) for each in containers),
        config=config,
        is_current=bool(config) and config == wanted_hash,
        node=(pod.get("spec") or {}).get("nodeName") or "",
        age_s=age_s(pod["metadata"].get("creationTimestamp"), now),
        why=trouble.message if trouble else "",
    )


def pod_state(pod: Manifest) -> str:
    """A pod's state in a word, as in `kubectl get pods`, but with readiness."""
    status = pod.get("status") or {}
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    if pods.is_ready(pod):
        return "Ready"
    scheduled = _find(status.get("conditions") or (), "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("reason") or "Unschedulable")
    for container in status.get("containerStatuses") or ():
        state = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            if reason := (state.get(kind) or {}).get("reason"):
                return str(reason)
        if "running" in state:
            return "Running" if container.get("started") else "Starting"
    return str(status.get("phase") or "Unknown")


def _events(events: Sequence[Manifest], now: datetime) -> tuple[EventLine, ...]:
    """The newest events in chronological order."""
    ordered = sorted(events, key=_time_of)[-MAX_EVENTS:]
    return tuple(
        EventLine(
            age_s=age_s(_time_of(each) or None, now),
            is_warning=each.get("type") == "Warning",
            reason=each.get("reason") or "",
            about=f"{each['involvedObject']['kind']}/{each['involvedObject']['name']}",
            message=" ".join((each.get("message") or "").split()),
            count=(each.get("series") or {}).get("count") or each.get("count") or 1,
        )
        for each in ordered
    )


def _time_of(event: Manifest) -> str:
    series = event.get("series") or {}
    found = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((each for each in found if each), "")


def _find(conditions: Sequence[dict[str, Any]], kind: str) -> dict[str, Any]:
    return next((each for each in conditions if each["type"] == kind), {})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
