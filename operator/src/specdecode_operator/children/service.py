"""The Service in front of a resource's engines."""

from specdecode_api import names
from specdecode_operator.children.labels import child_labels, service_selector
from specdecode_operator.kinds import SERVICE, Manifest


def service(name: str) -> Manifest:
    """ClusterIP Service; `protocol` is stated because it is part of the key of a port."""
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": {"name": name, "labels": child_labels(name)},
        "spec": {
            "type": "ClusterIP",
            "selector": service_selector(name),
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
