"""How a rollout replaces engines: a new one before an old one goes, or in its place.

A surge needs a free accelerator, and whether there is one only the scheduler knows: reading nodes
and pods of the whole cluster is a right that this decision is not worth. So a rollout surges, and
where the scheduler finds no room for a new pod while old ones hold theirs, it goes on in place.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from specdecode_api import names
from specdecode_operator import pods
from specdecode_operator.kinds import DEPLOYMENT, ChildId, Manifest
from specdecode_operator.observed import Observed, is_controlled_by
from specdecode_operator.resource import Resource
from specdecode_operator.rollout import condition

PATIENCE_S = 30.0
"""How long a new pod may be without room before old ones give way. Another pod may be ending."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The way of a rollout, and after how many seconds to decide anew, if waiting may change it."""

    is_in_place: bool
    look_again_s: float | None = None


SURGE = Pace(is_in_place=False)


def pace(observed: Observed, resource: Resource, config_hash: str) -> Pace:
    """The way to roll out `config_hash`.

    Once it goes in place it stays so until the next configuration, so that several replicas do
    not wait for room one after the other. That is written on the Deployment, not remembered.
    """
    strategy = resource.spec.lifecycle.update_strategy
    if strategy != "Auto":
        return Pace(strategy == "InPlace")
    if _in_place(observed) == config_hash:
        return Pace(True)
    waited_s = _wait_for_room_s(observed.pods, config_hash, observed.at)
    if waited_s is None:
        return SURGE
    return Pace(True) if waited_s >= PATIENCE_S else Pace(False, PATIENCE_S - waited_s)


def _in_place(observed: Observed) -> str | None:
    """The configuration whose rollout was told to go in place."""
    name = observed.resource["metadata"]["name"]
    live = observed.children.get(ChildId(DEPLOYMENT.kind, name))
    if live is None or not is_controlled_by(live, observed.uid):
        return None
    return (live["metadata"].get("annotations") or {}).get(names.ANNOTATION_IN_PLACE)


def _wait_for_room_s(found: Iterable[Manifest], config_hash: str, at: datetime) -> float | None:
    """Longest wait of a new pod that found no room, while an old one has some; else None."""
    stable = [pod for pod in found if pods.is_stable(pod) and not pods.is_ending(pod)]
    new = [pod for pod in stable if pods.config_hash_of(pod) == config_hash]
    if not any(pods.is_scheduled(pod) for pod in stable if pod not in new):
        return None
    waits_s = [
        pods.seconds_since(condition(pod, "PodScheduled"), at)
        for pod in new
        if pods.lacks_room(pod)
    ]
    return max(waits_s, default=None)
