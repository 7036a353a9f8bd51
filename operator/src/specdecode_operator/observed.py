"""What the operator knows about one resource at one moment."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from specdecode_api import names
from specdecode_api.report import Degradation, Progress
from specdecode_operator.kinds import ChildId, Manifest, child_id

EPOCH = datetime.fromtimestamp(0, UTC)


class Key(NamedTuple):
    """Names a resource; what is queued."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class Observed:
    """A resource as the API server gave it, with its children and pods."""

    resource: Manifest
    children: Mapping[ChildId, Manifest]
    pods: tuple[Manifest, ...] = ()
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """What pods that fetch models answered, by the name of the pod."""
    degraded: tuple[tuple[str, Degradation], ...] = ()
    """What engines that serve do worse than they were told to, with the name of the pod."""
    at: datetime = EPOCH
    """When it was so."""

    @property
    def uid(self) -> str:
        """Identity of the resource, which a recreated one does not share."""
        return str(self.resource["metadata"]["uid"])

    def with_children(self, written: Iterable[Manifest], removed: Iterable[ChildId]) -> "Observed":
        """The same after children were written and removed."""
        gone = set(removed)
        children = {key: child for key, child in self.children.items() if key not in gone}
        children |= {child_id(child): child for child in written}
        return replace(self, children=children)


def key_of(manifest: Manifest) -> Key | None:
    """Key of the resource that an object is, or that it says it belongs to."""
    metadata = manifest["metadata"]
    if manifest.get("kind") == names.KIND:
        return Key(metadata["namespace"], metadata["name"])
    # The reference first: a label is sooner edited. Pods are controlled by a ReplicaSet.
    controller = controller_of(manifest) or {}
    labels = metadata.get("labels") or {}
    is_ours = controller.get("kind") == names.KIND
    owner = controller["name"] if is_ours else labels.get(names.LABEL_DEPLOYMENT)
    return Key(metadata["namespace"], owner) if owner else None


def controller_of(manifest: Manifest) -> Manifest | None:
    """The owner reference that controls an object."""
    references = manifest["metadata"].get("ownerReferences") or ()
    return next((reference for reference in references if reference.get("controller")), None)


def is_controlled_by(manifest: Manifest, uid: str) -> bool:
    """Whether an object is controlled by the resource with this uid."""
    controller = controller_of(manifest)
    return controller is not None and controller["uid"] == uid
