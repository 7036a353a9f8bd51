"""Where a resource's pods may run: the fields of `spec.pod` in a pod's own words."""

from typing import Any

from pydantic import BaseModel

from specdecode_api.v1alpha1 import Spec
from specdecode_operator.children.labels import service_selector
from specdecode_operator.kinds import Manifest

GPU = "nvidia.com/gpu"


def placement(name: str, spec: Spec) -> Manifest:
    """Fields of a pod's spec that choose nodes; what nobody asked for is absent."""
    pod = spec.pod
    fields: Manifest = {
        "nodeSelector": dict(pod.node_selector),
        "tolerations": tolerations(spec),
        "affinity": _written(pod.affinity),
        "topologySpreadConstraints": [
            {**_written(each), "labelSelector": {"matchLabels": service_selector(name)}}
            for each in pod.topology_spread_constraints
        ],
        "runtimeClassName": pod.runtime_class_name,
        "priorityClassName": pod.priority_class_name,
        "imagePullSecrets": [_written(each) for each in pod.image_pull_secrets],
    }
    return {name: value for name, value in fields.items() if value}


def tolerations(spec: Spec) -> list[Manifest]:
    """The user's, and that of GPU nodes: they are commonly tainted to keep other pods away."""
    taint = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
    own = [_written(each) for each in spec.pod.tolerations]
    return [*([taint] if spec.device == "GPU" and taint not in own else []), *own]


def variables(spec: Spec) -> list[Manifest]:
    """Environment variables of the user; an empty value is left out, as the API server does."""
    written = [_written(each) for each in spec.pod.env]
    return [{key: it[key] for key in it if (key, it[key]) != ("value", "")} for it in written]


def _written(record: BaseModel) -> dict[str, Any]:
    return record.model_dump(by_alias=True, exclude_none=True, mode="json")
