"""The PodDisruptionBudget of a resource with more than one replica."""

from specdecode_operator.children.labels import child_labels, service_selector
from specdecode_operator.kinds import DISRUPTION_BUDGET, Manifest


def disruption_budget(name: str) -> Manifest:
    """Allow one voluntary disruption at a time; an engine that is not ready may always be evicted.

    There is no budget for a single replica, because it would block node drains.
    """
    return {
        "apiVersion": DISRUPTION_BUDGET.api_version,
        "kind": DISRUPTION_BUDGET.kind,
        "metadata": {"name": name, "labels": child_labels(name)},
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": service_selector(name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
