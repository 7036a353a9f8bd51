"""How a rollout replaces engines: surge (start the new one first) or in place.

A surge needs a free accelerator. Only the scheduler knows whether there is one; permission to read
all nodes and pods of the cluster is not justified here. So a rollout surges, and if the scheduler
cannot place a new pod within `surgeTimeout` while old pods run, the rollout continues in place.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_operator import pods
from specdecode_operator.kinds import DEPLOYMENT, ChildId, Manifest
from specdecode_operator.observed import Observed, is_controlled_by
from specdecode_operator.resource import Resource
from specdecode_operator.rollout import condition


@dataclass(frozen=True, slots=True)
class UpdateStrategy:
    """How to replace engines, and the seconds until the next decision if waiting may change it."""

    is_in_place: bool
    look_again_s: float | None = None


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
    waited_s = _wait_for_room_s(observed.pods, config_hash, observed.at)
    if waited_s is None:
        return SURGE
    left_s = duration_s(resource.spec.update_strategy.surge_timeout) - waited_s
    return UpdateStrategy(True) if left_s <= 0 else UpdateStrategy(False, left_s)


def was_in_place(observed: Observed) -> bool:
    """Whether the latest rollout found no room for a further pod, or was to need none."""
    return _in_place(observed) is not None


def _in_place(observed: Observed) -> str | None:
    """The configuration whose rollout is in place."""
    name = observed.resource["metadata"]["name"]
    live = observed.children.get(ChildId(DEPLOYMENT.kind, name))
    if live is None or not is_controlled_by(live, observed.uid):
        return None
    return (live["metadata"].get("annotations") or {}).get(names.ANNOTATION_IN_PLACE)


def _wait_for_room_s(found: Iterable[Manifest], config_hash: str, at: datetime) -> float | None:
    """Longest wait of an unschedulable new pod while an old pod is scheduled; else None.

    None also if a node is being prepared for each such pod: the scheduler or an autoscaler has
    nominated it, so that capacity is coming.
    """
    stable = [pod for pod in found if pods.is_stable(pod) and not pods.is_ending(pod)]
    new = [pod for pod in stable if pods.config_hash_of(pod) == config_hash]
    if not any(pods.is_scheduled(pod) for pod in stable if pod not in new):
        return None
    waits_s = [
        pods.seconds_since(condition(pod, "PodScheduled"), at)
        for pod in new
        if pods.lacks_room(pod) and not pods.has_nominated_node(pod)
    ]
    return max(waits_s, default=None)
