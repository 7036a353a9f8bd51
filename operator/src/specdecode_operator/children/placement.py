"""Scheduling fields that the operator adds to a pod."""

from specdecode_api.v1alpha1 import Spec
from specdecode_api.v1alpha1.resources import WHOLE_GPU
from specdecode_operator.children.labels import service_selector
from specdecode_operator.kinds import Manifest


def tolerations(spec: Spec) -> list[Manifest]:
    """GPU pods tolerate the `nvidia.com/gpu` taint automatically."""
    taint = {"key": WHOLE_GPU, "operator": "Exists", "effect": "NoSchedule"}
    return [taint] if spec.gpus else []


def with_selectors(name: str, pod: Manifest) -> Manifest:
    """Have topology spread constraints without a selector count the pods of this resource."""
    constraints = pod.get("topologySpreadConstraints")
    if not constraints:
        return pod
    own = {"labelSelector": {"matchLabels": service_selector(name)}}
    return {**pod, "topologySpreadConstraints": [{**own, **each} for each in constraints]}
