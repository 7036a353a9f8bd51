"""Kubernetes Events worth posting: transitions of `Ready`, of `Degraded`, of a refused spec, and of
trials.

An event's name is derived from its content and its start, so that posting it twice, for example
after a crash, results in one event.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from specdecode_api import names
from specdecode_operator.children.hashes import digest
from specdecode_operator.conditions import Type, timestamp
from specdecode_operator.kinds import EVENT, Manifest

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
    for kind in (Type.CONFIG_RESOLVED, Type.READY, Type.DEGRADED):
        old, new = before.get(kind, {}), after[kind]
        if _face(old) == _face(new) or not _is_reportable(kind, old, new):
            continue
        if not any(event["reason"] == new["reason"] for event in posted):
            posted.append(_event(resource, new, now))
    return (*posted, *_of_trials(resource, status, now))


def ended_trials(resource: Manifest, status: Manifest) -> tuple[Manifest, ...]:
    """Entries of the history that are not yet in the resource's status."""
    before = (resource.get("status") or {}).get("history") or ()
    known = [_run_of(each) for each in before]
    found = status.get("history") or ()
    return tuple(each for each in found if _run_of(each) not in known)


def _of_trials(resource: Manifest, status: Manifest, now: datetime) -> Iterator[Manifest]:
    """Events for a trial that starts, pauses, resumes or ends, and for ignored annotations."""
    before, trial = (resource.get("status") or {}), status.get("trial") or {}
    old = before.get("trial") or {}
    if trial and _run_of(trial) != _run_of(old):
        message = f"trial {trial['id']} started: {trial['kind']}, requested by {trial['origin']}"
        yield _posted(resource, "TrialStarted", message, trial["startedAt"], now)
    elif trial and "Paused" in (old["phase"], trial["phase"]) and old["phase"] != trial["phase"]:
        word = "Paused" if trial["phase"] == "Paused" else "Resumed"
        message = f"trial {trial['id']} is {word.lower()}"
        yield _posted(resource, f"Trial{word}", message, timestamp(now), now)
    for ended in ended_trials(resource, status):
        message = f"trial {ended['id']} ended: {ended['reason']}, {ended.get('message', '')}"
        yield _posted(resource, f"Trial{ended['verdict']}", message, ended["endedAt"], now)
    known = [(each["verb"], each["id"]) for each in before.get("rolloutRequests") or ()]
    for request in status.get("rolloutRequests") or ():
        if not request["isDone"] and (request["verb"], request["id"]) not in known:
            message = request["message"]
            yield _posted(resource, "RolloutRequestIgnored", message, request["id"], now)


def _run_of(trial: Manifest) -> tuple[Any, Any]:
    return trial.get("id"), trial.get("startedAt")


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
    """Whether to report a transition: not of a spec that was never refused, nor to AsExpected."""
    if kind is Type.CONFIG_RESOLVED:
        return new["status"] == "False" or old.get("status") == "False"
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
