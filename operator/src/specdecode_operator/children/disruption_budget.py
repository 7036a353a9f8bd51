"""The PodDisruptionBudget of a resource with more than one replica."""

from specdecode_operator.children.labels import child_labels, service_selector
from specdecode_operator.kinds import DISRUPTION_BUDGET, Manifest


def disruption_budget(name: str) -> Manifest:
    """Let a node drain take one engine at a time; one that serves nothing may always go.

    With a single replica a budget would only block node drains, so there is none.
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
