"""The NetworkPolicy of engines whose serving port can change them: who may reach it."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdecode_api import names
from specdecode_operator.objects.kinds import NETWORK_POLICY, Manifest
from specdecode_operator.objects.resource import Resource
from specdecode_operator.owned.build import finished
from specdecode_operator.owned.labels import child_labels, router_selector, service_selector

OPERATOR_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def network_policies(
    resource: Resource, operator_namespace: str, metrics_from: Sequence[Mapping[str, Any]]
) -> list[Manifest]:
    """The policy of a resource with runtime VLLM; none with Specdecode, which checks callers.

    Args:
        operator_namespace: where the operator runs; empty: it may be anywhere.
        metrics_from: peers that may read metrics, which are on the serving port.
    """
    if resource.spec.engine.runtime != "VLLM":
        return []
    in_namespace = (
        {"matchLabels": {OPERATOR_NAMESPACE_LABEL: operator_namespace}}
        if operator_namespace
        else {}
    )
    operator = {
        "namespaceSelector": in_namespace,
        "podSelector": {"matchLabels": {names.LABEL_COMPONENT: names.COMPONENT_OPERATOR}},
    }
    routers = {"podSelector": {"matchLabels": router_selector(resource.name)}}
    policy = {
        "apiVersion": NETWORK_POLICY.api_version,
        "kind": NETWORK_POLICY.kind,
        "metadata": {"name": f"{resource.name}-engines", "labels": child_labels(resource.name)},
        "spec": {
            "podSelector": {"matchLabels": service_selector(resource.name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [routers, operator, *map(dict, metrics_from)],
                    "ports": [{"port": names.ENGINE_PORT, "protocol": "TCP"}],
                }
            ],
        },
    }
    return [finished(policy, resource)]
