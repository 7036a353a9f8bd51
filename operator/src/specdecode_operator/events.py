"""Kubernetes Events worth posting: transitions of `Ready`, and of a spec that is refused.

An event's name is derived from what it says and when that began, so that posting it twice, after
a crash for instance, gives one event.
"""

from datetime import datetime
from typing import Any

from specdecode_api import names
from specdecode_operator.children.hashes import digest
from specdecode_operator.conditions import Type, timestamp
from specdecode_operator.kinds import EVENT, Manifest

MAX_EVENT_MESSAGE = 1000
_CALM = frozenset({"Serving", "ScaledToZero", "Starting", "Updating", "Resolved", "Downloading"})


def transitions(resource: Manifest, status: Manifest, now: datetime) -> tuple[Manifest, ...]:
    """Events for what differs between the resource's status and its next one."""
    before = _by_type((resource.get("status") or {}).get("conditions") or [])
    after = _by_type(status["conditions"])
    told: list[Manifest] = []
    for kind in (Type.CONFIG_RESOLVED, Type.READY):
        old, new = before.get(kind, {}), after[kind]
        if _face(old) == _face(new) or (kind is Type.CONFIG_RESOLVED and not _is_news(old, new)):
            continue
        if not any(event["reason"] == new["reason"] for event in told):
            told.append(_event(resource, new, now))
    return tuple(told)


def _is_news(old: dict[str, Any], new: dict[str, Any]) -> bool:
    """A resolved config is news only after one that was not."""
    return new["status"] == "False" or old.get("status") == "False"


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
