"""The NetworkPolicy of engines whose serving port can change them: who may reach it."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdecode_api import names
from specdecode_operator.objects.kinds import NETWORK_POLICY, Manifest
from specdecode_operator.objects.resource import Resource
from specdecode_operator.owned.build import finished
from specdecode_operator.owned.labels import child_labels, router_selector, runtime_selector

OPERATOR_NAMESPACE_LABEL = "kubernetes.io/metadata.name"


def network_policies(
    resource: Resource,
    operator_namespace: str,
    metrics_from: Sequence[Mapping[str, Any]],
    *,
    has_vllm_pods: bool = False,
) -> list[Manifest]:
    """The policy of pods with vLLM; none of those with Specdecode, which check callers.

    Args:
        operator_namespace: where the operator runs; empty: it may be anywhere.
        metrics_from: peers that may read metrics, and use the rest of the serving port.
        has_vllm_pods: whether there are or may be pods with vLLM, of an earlier spec.
    """
    if resource.spec.engine.runtime != "VLLM" and not has_vllm_pods:
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
        "metadata": {"name": f"{resource.name}-vllm", "labels": child_labels(resource.name)},
        "spec": {
            "podSelector": {"matchLabels": runtime_selector(resource.name, "VLLM")},
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
