"""Kubernetes Events worth posting: of readiness, refused specs, failed parts, and trials.

An event's name is derived from its content and its start, so that posting it twice, for example
after a crash, results in one event.
"""

from datetime import datetime
from typing import Any

from specdecode_api import names
from specdecode_operator.objects.kinds import EVENT, Manifest
from specdecode_operator.owned.hashes import digest
from specdecode_operator.status.conditions import TABLE_WARNINGS, Type, timestamp

MAX_EVENT_MESSAGE = 1000
_CALM = frozenset({
    "Serving", "ScaledToZero", "Starting", "Updating", "Resolved", "Downloading",
    "TrialStarted", "TrialPaused", "TrialResumed", "TrialPromoted", "TrialSuperseded",
    "TrialAborted",
})  # fmt: skip


def transitions(resource: Manifest, status: Manifest, now: datetime) -> tuple[Manifest, ...]:
    """Events for the differences between the resource's status and the next one."""
    before = _by_type((resource.get("status") or {}).get("conditions") or [])
    after = _by_type(status["conditions"])
    posted: list[Manifest] = []
    for kind in (Type.CONFIG_RESOLVED, Type.READY, Type.DEGRADED, Type.PART_FAILED):
        old, new = before.get(kind, {}), after.get(kind)
        if new is None or _face(old) == _face(new) or not _is_reportable(kind, old, new):
            continue
        if not any(event["reason"] == new["reason"] for event in posted):
            posted.append(_event(resource, new, now))
    return tuple(posted)


def has_ended(trial: Manifest, status: Manifest) -> bool:
    """Whether `status` is the first with this verdict of a SpecDecodeTrial."""
    before = (trial.get("status") or {}).get("verdict")
    return status.get("verdict") not in (None, before)


def of_trial(
    resource: Manifest, trial: Manifest, status: Manifest, now: datetime
) -> Manifest | None:
    """Event for a SpecDecodeTrial that starts, pauses, resumes or ends; None for other changes."""
    name, before = trial["metadata"]["name"], trial.get("status") or {}
    old, new = before.get("phase"), status["phase"]
    if has_ended(trial, status):
        message = f"trial {name} ended: {status['reason']}, {status.get('message', '')}"
        return _posted(resource, f"Trial{status['verdict']}", message, status["endedAt"], now)
    if "startedAt" in status and "startedAt" not in before:
        origin = trial["spec"].get("origin", "User")
        message = f"trial {name} started: {status['strategy']}, requested by {origin}"
        return _posted(resource, "TrialStarted", message, status["startedAt"], now)
    if old != new and "Paused" in (old, new):
        word = "Paused" if new == "Paused" else "Resumed"
        message = f"trial {name} is {word.lower()}"
        return _posted(resource, f"Trial{word}", message, timestamp(now), now)
    return None


def _posted(resource: Manifest, reason: str, message: str, began: str, now: datetime) -> Manifest:
    condition = {
        "type": "Trial",
        "reason": reason,
        "message": message,
        "lastTransitionTime": began,
        "observedGeneration": resource["metadata"].get("generation"),
    }
    return _event(resource, condition, now)


def _is_reportable(kind: Type, old: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether to report a transition: not of a spec that was never refused, nor to AsExpected.

    A spec whose table has warnings is reported like a refused one.
    """
    if kind is Type.CONFIG_RESOLVED:
        is_refused = "False" in (new["status"], old.get("status"))
        return is_refused or new["reason"] == TABLE_WARNINGS
    return kind is Type.READY or new["status"] == "True"


def _face(condition: dict[str, Any]) -> tuple[Any, Any]:
    return condition.get("status"), condition.get("reason")


def _by_type(conditions: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in conditions}


def _event(resource: Manifest, condition: dict[str, Any], now: datetime) -> Manifest:
    metadata = resource["metadata"]
    what = [metadata["uid"], condition["type"], condition["reason"], condition["message"]]
    began = [condition["lastTransitionTime"], condition["observedGeneration"]]
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.kind,
        "metadata": {
            "name": f"{metadata['name']}.{digest([*what, *began])}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Normal" if condition["reason"] in _CALM else "Warning",
        "reason": condition["reason"],
        "message": (condition["message"] or condition["reason"])[:MAX_EVENT_MESSAGE],
        "source": {"component": names.FIELD_MANAGER},
        "reportingComponent": names.FIELD_MANAGER,
        "reportingInstance": names.FIELD_MANAGER,
        "firstTimestamp": timestamp(now),
        "lastTimestamp": timestamp(now),
        "count": 1,
    }
