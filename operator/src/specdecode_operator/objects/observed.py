"""The observed state of one custom resource."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import NamedTuple

from specdecode_api import names
from specdecode_api.report import Degradation, DraftInUse, Progress
from specdecode_operator.objects.kinds import ChildId, Manifest, ResourceKind, child_id

EPOCH = datetime.fromtimestamp(0, UTC)


class Key(NamedTuple):
    """Namespace and name of a custom resource; the keys of the queue."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class DraftAnswer:
    """What an engine answered about its draft."""

    report: DraftInUse | None = None
    error: str = ""
    """Why there is no report."""
    asked: str = ""
    """Config hash for which it was asked to exchange its draft."""
    waited_s: float = 0.0
    """Since it was asked."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A custom resource as stored by the API server, with its owned objects and pods."""

    resource: Manifest
    children: Mapping[ChildId, Manifest]
    pods: tuple[Manifest, ...] = ()
    progress: Mapping[str, Progress] = field(default_factory=dict)
    """Download progress by pod name."""
    degraded: tuple[tuple[str, Degradation], ...] = ()
    """Degradations of serving engines, with the name of the pod."""
    at: datetime = EPOCH
    """Time of the observation."""
    slices: tuple[Manifest, ...] = ()
    """Endpoint slices of the Service."""
    trials: tuple[Manifest, ...] = ()
    """SpecDecodeTrials that name this resource, the oldest first."""
    revisions: tuple[Manifest, ...] = ()
    """ControllerRevisions with configurations that were accepted, the oldest first."""
    activity: Manifest | None = None
    """`status.activity` as it should be."""
    drafts: Mapping[str, DraftAnswer] = field(default_factory=dict)
    """What engines answered about their drafts, by uid of the pod."""
    node_events: tuple[Manifest, ...] = ()
    """Events about pods that have waited for a node for longer than `surgeTimeout`."""
    dry_runs: Mapping[str, str] = field(default_factory=dict)
    """Why the API server refuses a candidate, by the key of its dry run; empty: it accepts it."""
    measured: Manifest | None = None
    """`status.measured` as it should be."""

    @property
    def uid(self) -> str:
        """Uid of the resource; a recreated resource has another one."""
        return str(self.resource["metadata"]["uid"])

    def owned(self, kind: ResourceKind, name: str = "") -> Manifest | None:
        """The owned object of a kind, by default that with the resource's name."""
        found = self.children.get(ChildId(kind.kind, name or self.resource["metadata"]["name"]))
        return found if found is not None and is_controlled_by(found, self.uid) else None

    def with_children(self, written: Iterable[Manifest], removed: Iterable[ChildId]) -> "Observed":
        """A copy with the owned objects that were written and without the removed ones."""
        gone = set(removed)
        children = {key: child for key, child in self.children.items() if key not in gone}
        children |= {child_id(child): child for child in written}
        return replace(self, children=children)


def key_of(manifest: Manifest) -> Key | None:
    """Key of a custom resource, or of the custom resource to which an object belongs."""
    metadata = manifest["metadata"]
    if manifest.get("kind") == names.KIND:
        return Key(metadata["namespace"], metadata["name"])
    if manifest.get("kind") == names.KIND_TRIAL:
        return Key(metadata["namespace"], manifest["spec"]["deployment"])
    # The reference first, because labels are edited more easily. Pods belong to a ReplicaSet.
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
