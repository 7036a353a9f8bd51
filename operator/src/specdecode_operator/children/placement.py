"""Scheduling fields of a pod, from `spec.pod`."""

from typing import Any

from pydantic import BaseModel

from specdecode_api.v1alpha1 import Spec
from specdecode_operator.children.labels import service_selector
from specdecode_operator.kinds import Manifest

GPU = "nvidia.com/gpu"


def placement(name: str, spec: Spec) -> Manifest:
    """Scheduling fields of a pod spec; empty fields are left out."""
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
    """The user's tolerations; GPU pods tolerate the `nvidia.com/gpu` taint automatically."""
    taint = {"key": GPU, "operator": "Exists", "effect": "NoSchedule"}
    own = [_written(each) for each in spec.pod.tolerations]
    return [*([taint] if spec.device == "GPU" and taint not in own else []), *own]


def variables(spec: Spec) -> list[Manifest]:
    """Environment variables of the user, without empty values, as the API server stores them."""
    written = [_written(each) for each in spec.pod.env]
    return [{key: it[key] for key in it if (key, it[key]) != ("value", "")} for it in written]


def _written(record: BaseModel) -> dict[str, Any]:
    return record.model_dump(by_alias=True, exclude_none=True, mode="json")
