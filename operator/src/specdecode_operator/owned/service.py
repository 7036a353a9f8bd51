"""The Service in front of a resource's engines, or of its routers."""

from collections.abc import Mapping

from specdecode_api import names
from specdecode_operator.objects.kinds import DISRUPTION_BUDGET, SERVICE, SERVICE_ACCOUNT, Manifest
from specdecode_operator.owned.labels import child_labels, service_selector


def service(name: str, selector: Mapping[str, str] | None = None) -> Manifest:
    """ClusterIP Service; `protocol` is stated because it is part of the key of a port.

    Args:
        selector: of its pods; those of the engines if None.
    """
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": {"name": name, "labels": child_labels(name)},
        "spec": {
            "type": "ClusterIP",
            "selector": service_selector(name) if selector is None else dict(selector),
            "ports": [
                {
                    "name": names.ENGINE_PORT_NAME,
                    "port": names.SERVICE_PORT,
                    "protocol": "TCP",
                    "targetPort": names.ENGINE_PORT_NAME,
                }
            ],
        },
    }


def url(name: str, namespace: str) -> str:
    """URL of the endpoint inside the cluster; the API is under `/v1`."""
    return f"http://{name}.{namespace}.svc"


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


def service_account(name: str) -> Manifest:
    """ServiceAccount of a resource's engine pods."""
    return {
        "apiVersion": SERVICE_ACCOUNT.api_version,
        "kind": SERVICE_ACCOUNT.kind,
        "metadata": {"name": name, "labels": child_labels(name)},
        "automountServiceAccountToken": False,
    }
