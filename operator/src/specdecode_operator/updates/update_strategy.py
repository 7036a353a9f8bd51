"""How a rollout replaces engines: surge (start the new one first) or in place.

A surge needs a free accelerator. Only the scheduler knows whether there is one; permission to read
all nodes and pods of the cluster is not justified here. So a rollout surges, and if the scheduler
cannot place a new pod within `surgeTimeout` while old pods run, the rollout continues in place. It
waits longer while a node is being added for each such pod. A new pod that was placed on another
node than the old one, and cannot mount a ReadWriteOnce PVC there, waits in the same way.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import DEPLOYMENT, Manifest
from specdecode_operator.objects.observed import EPOCH, Observed
from specdecode_operator.objects.resource import Resource, ResourceError, parse_stored
from specdecode_operator.objects.rollout import condition
from specdecode_operator.objects.times import seconds_since, time_of

# Whether an autoscaler has announced a node for a pod that no node has room for.
#
# Cluster Autoscaler and Karpenter report that in events about the pod. Neither sets a field of the
# pod when it adds a node.

ANNOUNCEMENTS = frozenset({"TriggeredScaleUp", "Nominated"})
"""Reasons by which Cluster Autoscaler and Karpenter announce a node for a pod."""

WITHDRAWALS = frozenset({"NotTriggerScaleUp", "FailedToScaleUp"})
"""Reasons by which Cluster Autoscaler reports that no node comes."""

PROVISION_S = 15 * 60.0
"""How long an announcement counts: Cluster Autoscaler's `--max-node-provision-time` and the time
after which Karpenter gives up a node that does not register."""

FAILED_MOUNT = ("FailedMount", "MountVolume.")
"""Reason and beginning of the kubelet's events about a volume that it cannot mount although no
other node uses it, such as a Secret that does not exist. In place, the next engine would fail too.
"""

MOUNT_FAILURE_S = 5 * 60.0
"""How long such an event counts; the kubelet tries again every two minutes."""

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


def _fails_to_mount(events: Iterable[Manifest], pod: Manifest, now: datetime) -> bool:
    """Whether the kubelet has failed lately to mount a volume that no other node holds."""
    reason, beginning = FAILED_MOUNT
    uid = pod["metadata"].get("uid")
    return any(
        (now - at).total_seconds() < MOUNT_FAILURE_S
        for each in events
        if (each.get("involvedObject") or {}).get("uid") == uid and each.get("reason") == reason
        if str(each.get("message")).startswith(beginning) and (at := _time_of(each))
    )


def _time_of(event: Manifest) -> datetime | None:
    """When an event was reported last; None if it has no valid time."""
    latest = time_of(event.get("series") or {}, "lastObservedTime")
    found = [latest, *(time_of(event, field) for field in _TIMES)]
    return max((at for at in found if at is not None), default=None)


LONGEST_EXTENSION_S = 2 * PROVISION_S
"""Longest wait for announced nodes beyond `surgeTimeout`: an autoscaler may announce a node again
and again that never comes."""

LOOK_AT_EVENTS_S = 60.0
"""While the wait is extended: an autoscaler may withdraw its announcement, a volume be repaired."""


@dataclass(frozen=True, slots=True)
class UpdateStrategy:
    """How to replace engines, and the seconds until the next decision if waiting may change it."""

    is_in_place: bool
    look_again_s: float | None = None
    coming_node: str = ""
    """Who announced a node for which the rollout waits beyond `surgeTimeout`."""


@dataclass(frozen=True, slots=True)
class RoomWait:
    """The wait of a pod for room or for a PVC; times in seconds from now."""

    left_s: float
    """Until the rollout continues in place; not positive if it does so now."""
    coming_node: str = ""


SURGE = UpdateStrategy(is_in_place=False)


def choose_update_strategy(
    observed: Observed, resource: Resource, config_hash: str
) -> UpdateStrategy:
    """Choose how to roll out `config_hash`.

    A rollout in place stays in place until the next configuration, so that several replicas do
    not wait one after the other. This is recorded on the Deployment, not in memory.
    """
    strategy = resource.spec.update_strategy.type
    if strategy != "Auto":
        return UpdateStrategy(strategy == "InPlace")
    if _in_place(observed) == config_hash:
        return UpdateStrategy(True)
    waiting = _waiting(observed.pods, _Version(config_hash))
    first = shortest_wait(waiting, observed, resource.spec)
    if first is None:
        return SURGE
    if first.left_s <= 0:
        return UpdateStrategy(True)
    again_s = min(first.left_s, LOOK_AT_EVENTS_S) if first.coming_node else first.left_s
    return UpdateStrategy(False, again_s, first.coming_node)


def shortest_wait(
    waiting: Iterable[Manifest], observed: Observed, spec: Spec, since: datetime = EPOCH
) -> RoomWait | None:
    """The wait that ends first of pods that lack capacity; None without such pods.

    Args:
        since: no wait began before.
    """
    timeout_s = duration_s(spec.update_strategy.surge_timeout)
    longest_s = max(0.0, (observed.at - since).total_seconds())
    waits = [_wait(pod, observed, timeout_s, longest_s) for pod in waiting]
    return min(waits, key=lambda each: each.left_s, default=None)


def overdue_pods(observed: Observed) -> tuple[Manifest, ...]:
    """New pods that have lacked capacity longer than `surgeTimeout`.

    Whether the rollout waits longer depends on events about these pods.
    """
    lacking = [pod for pod in observed.pods if lacks_capacity(pod)]
    if not lacking:
        return ()
    try:
        strategy = parse_stored(observed.resource).spec.update_strategy
    except ResourceError:
        return ()
    timeout_s = duration_s(strategy.surge_timeout)
    return tuple(
        pod
        for version in {_version_of(pod) for pod in lacking}
        if version.block or (strategy.type == "Auto" and version.config_hash != _in_place(observed))
        for pod in _waiting(observed.pods, version)
        if _waited_s(pod, observed.at) >= timeout_s
    )


def lacks_capacity(pod: Manifest) -> bool:
    """Whether a new pod may start once an old one stops: it has no node, or not its PVC there."""
    return pods.lacks_room(pod) or pods.waits_for_claim(pod)


def was_in_place(observed: Observed) -> bool:
    """Whether the latest rollout found no room for a further pod, or was to need none."""
    return _in_place(observed) is not None


def _in_place(observed: Observed) -> str | None:
    """The configuration whose rollout is in place."""
    live = observed.owned(DEPLOYMENT)
    if live is None:
        return None
    return (live["metadata"].get("annotations") or {}).get(names.ANNOTATION_IN_PLACE)


class _Version(NamedTuple):
    """What a rollout replaces: a configuration, or a block of a trial that runs it."""

    config_hash: str | None
    block: str = ""


def _version_of(pod: Manifest) -> _Version:
    annotations = pod["metadata"].get("annotations") or {}
    return _Version(pods.config_hash_of(pod), annotations.get(names.ANNOTATION_BLOCK, ""))


def _waiting(found: Iterable[Manifest], version: _Version) -> Iterator[Manifest]:
    """New pods that lack capacity while an old pod is scheduled, which could give way."""
    stable = [pod for pod in found if pods.is_stable(pod) and pods.is_active(pod)]
    new = [pod for pod in stable if _version_of(pod) == version]
    if any(pods.is_scheduled(pod) for pod in stable if pod not in new):
        yield from filter(lacks_capacity, new)


def _wait(pod: Manifest, observed: Observed, timeout_s: float, longest_s: float) -> RoomWait:
    """How long the rollout waits for a pod, given who announced a node for it.

    `surgeTimeout` from the moment at which the pod became unschedulable, or began to mount its PVC.
    Without a node, until `PROVISION_S` after the latest announcement, at most `LONGEST_EXTENSION_S`
    more. A node that the scheduler or an autoscaler nominated in the pod's status has no time: it
    counts until that limit.
    """
    waited_s = min(longest_s, _waited_s(pod, observed.at))
    if pods.waits_for_claim(pod):
        if _fails_to_mount(observed.node_events, pod, observed.at):
            return RoomWait(LOOK_AT_EVENTS_S)
        return RoomWait(max(timeout_s, pods.MOUNTING_S) - waited_s)
    usual_s = timeout_s - waited_s
    limit_s = usual_s + LONGEST_EXTENSION_S
    if node := pods.nominated_node(pod):
        return RoomWait(limit_s, f"node {node} is nominated")
    announced = announcement(observed.node_events, pod)
    if announced is None:
        return RoomWait(usual_s)
    until_s = PROVISION_S - max(0.0, (observed.at - announced.at).total_seconds())
    extended_s = min(limit_s, until_s)
    if extended_s <= usual_s:
        return RoomWait(usual_s)
    return RoomWait(extended_s, f"an autoscaler announced a node ({announced.reason})")


def _waited_s(pod: Manifest, at: datetime) -> float:
    return seconds_since(condition(pod, "PodScheduled"), "lastTransitionTime", at)
