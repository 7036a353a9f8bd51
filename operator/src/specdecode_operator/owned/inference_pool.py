"""The InferencePool through which a Gateway sends requests to a resource's engines."""

from specdecode_api import names
from specdecode_operator.objects.kinds import INFERENCE_POOL, SERVICE, Manifest
from specdecode_operator.objects.resource import Resource
from specdecode_operator.owned.build import finished
from specdecode_operator.owned.labels import child_labels, service_selector


def inference_pools(resource: Resource) -> list[Manifest]:
    """Return the InferencePool of a resource, if it wants one.

    It selects what the Service selects: all engine pods, those of trials included. Readiness is
    looked at by the endpoint picker.
    """
    if resource.spec.inference_pool is None:
        return []
    picker = resource.spec.inference_pool.endpoint_picker_ref
    pool = {
        "apiVersion": INFERENCE_POOL.api_version,
        "kind": INFERENCE_POOL.kind,
        "metadata": {"name": resource.name, "labels": child_labels(resource.name)},
        "spec": {
            "selector": {"matchLabels": service_selector(resource.name)},
            "targetPorts": [{"number": names.ENGINE_PORT}],
            "endpointPickerRef": {
                "kind": SERVICE.kind,
                "name": picker.name,
                "port": {"number": picker.port.number},
                "failureMode": picker.failure_mode,
            },
        },
    }
    return [finished(pool, resource)]


def has_foreign_labels(live: Manifest, desired: Manifest) -> bool:
    """Whether others added labels to the selector, which a server-side apply would leave there."""
    found, wanted = (
        ((each.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
        for each in (live, desired)
    )
    return not found.keys() <= wanted.keys()
