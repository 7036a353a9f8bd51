"""All objects of one resource at about one moment."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdecode_api import names
from specdecode_operator.objects import pods as engine_pods
from specdecode_operator.objects.kinds import SERVICE, Manifest, child_id
from specdecode_operator.owned import engines_service_name
from specdecode_operator.owned.labels import router_selector
from specdecode_operator.status.status import SERVICE_LABEL


@dataclass(frozen=True, slots=True)
class Seen:
    """A resource and what belongs to it, or claims to. The lists are read one by one."""

    resource: Manifest
    children: tuple[Manifest, ...]
    replica_sets: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]
    slices: tuple[Manifest, ...]
    router_sets: tuple[Manifest, ...] = ()
    router_pods: tuple[Manifest, ...] = ()

    @property
    def wanted(self) -> int:
        """Desired replicas of the resource."""
        return int(self.resource["spec"].get("replicas", 1))

    @property
    def living_pods(self) -> tuple[Manifest, ...]:
        """Pods that are not on their way out."""
        return tuple(pod for pod in self.pods if "deletionTimestamp" not in pod["metadata"])

    @property
    def ready_pods(self) -> tuple[Manifest, ...]:
        """Living pods that are ready."""
        return tuple(pod for pod in self.living_pods if engine_pods.is_ready(pod))

    @property
    def living_routers(self) -> tuple[Manifest, ...]:
        """Router pods that are not on their way out."""
        return tuple(pod for pod in self.router_pods if "deletionTimestamp" not in pod["metadata"])

    @property
    def ready_routers(self) -> tuple[Manifest, ...]:
        """Living router pods that are ready."""
        return tuple(pod for pod in self.living_routers if engine_pods.is_ready(pod))

    @property
    def wanted_routers(self) -> int:
        """Desired router pods of the resource; 0 without routers."""
        return int((self.resource["spec"].get("router") or {}).get("replicas", 0))

    @property
    def leads_to_routers(self) -> bool:
        """Whether the Service leads to the routers."""
        wanted = SERVICE.kind, self.resource["metadata"]["name"]
        found = next((child for child in self.children if child_id(child) == wanted), {})
        selector = found.get("spec", {}).get("selector") or {}
        return router_selector(wanted[1]).items() <= selector.items()

    @property
    def routable(self) -> int:
        """Engines to which the Service, or the routers, send requests."""
        name = self.resource["metadata"]["name"]
        service = engines_service_name(name) if self.leads_to_routers else name
        endpoints = (
            endpoint
            for part in self.slices
            if (part["metadata"].get("labels") or {}).get(SERVICE_LABEL, service) == service
            for endpoint in part.get("endpoints") or ()
        )
        return sum(bool(endpoint.get("conditions", {}).get("ready")) for endpoint in endpoints)

    def condition(self, kind: str) -> Manifest:
        """A condition of the resource; empty where it is absent."""
        conditions: Sequence[Manifest] = (self.resource.get("status") or {}).get("conditions") or ()
        return next((entry for entry in conditions if entry["type"] == kind), {})


def hash_of(manifest: Manifest) -> str | None:
    """The configuration that an object carries."""
    annotations = manifest["metadata"].get("annotations") or {}
    found: str | None = annotations.get(names.ANNOTATION_CONFIG_HASH)
    return found
