"""Reads a resource and all around it from the API server, on one connection."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from checks.traffic.seen import Seen
from localnode.lifecycle import control_plane
from localnode.paths import Paths
from specdecode_api import names
from specdecode_operator.objects.kinds import (
    CHILDREN,
    POD,
    RESOURCE,
    ROUTER_CHILDREN,
    Manifest,
    ResourceKind,
)

NAMESPACE = "default"
_REPLICA_SET = ResourceKind("apps", "v1", "ReplicaSet", "replicasets", ())
_SLICE = ResourceKind("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", ())


class Reader:
    """Reads as an administrator of the local node."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def see(self, name: str) -> Seen:
        """Read a resource with everything that carries its label.

        Raises:
            httpx.HTTPError: the API server is away or refuses.
        """
        label = f"{names.LABEL_DEPLOYMENT}={name}"
        kinds = (*CHILDREN, *ROUTER_CHILDREN)
        routers = f"{label},{names.LABEL_COMPONENT}={names.COMPONENT_ROUTER}"
        engines = f"{label},{names.LABEL_COMPONENT}={names.COMPONENT_ENGINE}"
        return Seen(
            resource=self.get(RESOURCE.path(NAMESPACE, name)),
            children=tuple(child for kind in kinds for child in self._list(kind, label)),
            replica_sets=tuple(self._list(_REPLICA_SET, engines)),
            pods=tuple(self._list(POD, engines)),
            slices=tuple(self._list(_SLICE, label)),
            router_sets=tuple(self._list(_REPLICA_SET, routers)),
            router_pods=tuple(self._list(POD, routers)),
        )

    def pods(self, namespace: str, label: str) -> list[Manifest]:
        """Pods of a namespace with a label."""
        return list(self._list(POD, label, namespace))

    def get(self, path: str, **query: str) -> Manifest:
        """Read one answer."""
        answer = self._http.get(path, params=query)
        answer.raise_for_status()
        document: Manifest = answer.json()
        return document

    def _list(
        self, kind: ResourceKind, label: str, namespace: str = NAMESPACE
    ) -> Iterator[Manifest]:
        found = self.get(kind.path(namespace), labelSelector=label)
        for item in found["items"]:
            yield {"apiVersion": kind.api_version, "kind": kind.kind, **item}


@contextmanager
def reading() -> Iterator[Reader]:
    """Connect to the local node's API server."""
    plane = control_plane(Paths.from_environment())
    tls = plane.admin_client().tls
    with httpx.Client(base_url=plane.url, verify=tls, trust_env=False, timeout=5) as http:
        yield Reader(http)
