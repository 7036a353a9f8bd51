"""What trials cost, summed over custom resources from their status."""

from collections.abc import Iterable
from dataclasses import dataclass

from specdecode_api.duration import part_of_one
from specdecode_api.v1alpha1.rollout import ExplorationSpec
from specdecode_operator.objects.kinds import Manifest

DAY_S = 86_400.0
_DEFAULT_LIMIT = ExplorationSpec().max_candidate_share


@dataclass(frozen=True, slots=True)
class ExplorationCost:
    """Cost of the trials that started within 24 hours; the longest duration of running ones."""

    candidate_pod_s: float = 0.0
    """Pod-seconds on candidate configurations, of all resources."""
    largest_used: float = 0.0
    """Largest part of `rollout.exploration.maxCandidateShare` that a resource has used; 1: all."""


def exploration_cost(resources: Iterable[Manifest]) -> ExplorationCost:
    """Cost as the resources' status reports it; nothing for resources that report none."""
    known = [(each, found) for each in resources if (found := _candidate_share(each)) is not None]
    return ExplorationCost(
        sum(share * max(1, _replicas(each)) * DAY_S for each, share in known),
        max((_used(share, _limit(each)) for each, share in known), default=0.0),
    )


def _candidate_share(resource: Manifest) -> float | None:
    reported = (resource.get("status") or {}).get("exploration") or {}
    try:
        return part_of_one(reported["candidateShare"])
    except (KeyError, AttributeError, ValueError):
        return None


def _replicas(resource: Manifest) -> int:
    return int((resource.get("spec") or {}).get("replicas", 1))


def _limit(resource: Manifest) -> float:
    rollout = (resource.get("spec") or {}).get("rollout") or {}
    text = (rollout.get("exploration") or {}).get("maxCandidateShare", _DEFAULT_LIMIT)
    try:
        return part_of_one(text)
    except (AttributeError, ValueError):
        return 0.0  # a definition that was edited by hand admits other texts


def _used(share: float, limit: float) -> float:
    """Part of the limit; a limit of 0 starts no trial, so it cannot be approached."""
    return share / limit if limit > 0 else 0.0
