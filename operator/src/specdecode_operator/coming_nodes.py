"""Whether an autoscaler has announced a node for a pod that no node has room for.

Cluster Autoscaler and Karpenter report that in events about the pod. Neither sets a field of the
pod when it adds a node.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from specdecode_operator.kinds import Manifest
from specdecode_operator.times import time_of

ANNOUNCEMENTS = frozenset({"TriggeredScaleUp", "Nominated"})
"""Reasons by which Cluster Autoscaler and Karpenter announce a node for a pod."""

WITHDRAWALS = frozenset({"NotTriggerScaleUp", "FailedToScaleUp"})
"""Reasons by which Cluster Autoscaler reports that no node comes."""

PROVISION_S = 15 * 60.0
"""How long an announcement counts: Cluster Autoscaler's `--max-node-provision-time` and the time
after which Karpenter gives up a node that does not register."""

_TIMES = ("lastTimestamp", "eventTime", "firstTimestamp")


@dataclass(frozen=True, slots=True)
class Announcement:
    """The latest event by which an autoscaler announces a node for a pod."""

    reason: str
    at: datetime


def announcement(events: Iterable[Manifest], pod: Manifest) -> Announcement | None:
    """The latest announcement of a node for a pod; None without one, or if it is withdrawn."""
    uid = pod["metadata"].get("uid")
    about = [each for each in events if (each.get("involvedObject") or {}).get("uid") == uid]
    dated = [(at, str(each.get("reason"))) for each in about if (at := _time_of(each))]
    known = [each for each in dated if each[1] in ANNOUNCEMENTS | WITHDRAWALS]
    at, reason = max(known, default=(None, ""))
    return Announcement(reason, at) if at is not None and reason in ANNOUNCEMENTS else None


def _time_of(event: Manifest) -> datetime | None:
    """When an event was reported last; None if it has no valid time."""
    latest = time_of(event.get("series") or {}, "lastObservedTime")
    found = [latest, *(time_of(event, field) for field in _TIMES)]
    return max((at for at in found if at is not None), default=None)
