"""All objects of one resource at about one moment."""

from collections.abc import Sequence
from dataclasses import dataclass

from specdecode_api import names
from specdecode_operator import pods as engine_pods
from specdecode_operator.kinds import Manifest


@dataclass(frozen=True, slots=True)
class Seen:
    """A resource and what belongs to it, or claims to. The lists are read one by one."""

    resource: Manifest
    children: tuple[Manifest, ...]
    replica_sets: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]
    slices: tuple[Manifest, ...]

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
    def routable(self) -> int:
        """Addresses to which the Service sends requests."""
        endpoints = (e for part in self.slices for e in part.get("endpoints") or ())
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
