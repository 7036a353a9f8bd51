"""The latest known objects: custom resources, and by resource its objects, pods and endpoints.

Written by `watching` (events), `resync` (lists) and `reconcile` (responses to its writes);
read by `reconcile`. An older version of an object never replaces a newer one.
"""

from collections import defaultdict
from collections.abc import Iterable

from specdecode_api import names
from specdecode_operator.objects.kinds import (
    CONTROLLER_REVISION,
    ENDPOINT_SLICE,
    POD,
    TRIAL,
    ChildId,
    Manifest,
)
from specdecode_operator.objects.observed import Key, Observed, key_of

_APART = frozenset(kind.kind for kind in (POD, ENDPOINT_SLICE, TRIAL, CONTROLLER_REVISION))
"""Kinds that `Observed` lists apart from the children."""

Identity = tuple[str, str, str]
"""Kind, namespace and name of an object."""


def version_of(manifest: Manifest) -> int:
    """Resource version of an object; versions increase, and are comparable within a kind."""
    return int(manifest["metadata"]["resourceVersion"])


def identity_of(manifest: Manifest) -> Identity:
    """Identity of an object."""
    metadata = manifest["metadata"]
    return manifest["kind"], metadata["namespace"], metadata["name"]


class Cache:
    """The latest known version of every object that the operator watches."""

    def __init__(self) -> None:
        self._objects: dict[Identity, Manifest] = {}
        self._owned: defaultdict[Key, set[Identity]] = defaultdict(set)
        self._gone: dict[Identity, int] = {}  # version at which an object was deleted

    def put(self, manifest: Manifest) -> Key | None:
        """Store a version without `managedFields`; returns the resource's key if it was newer."""
        identity = identity_of(manifest)
        known = self._objects.get(identity)
        if version_of(manifest) <= self._gone.get(identity, -1):
            return None
        if known is not None and version_of(known) >= version_of(manifest):
            return None
        if known is not None:
            self._unlink(known)
        metadata = {k: v for k, v in manifest["metadata"].items() if k != "managedFields"}
        self._objects[identity] = {**manifest, "metadata": metadata}
        key = key_of(manifest)
        if key is not None and manifest["kind"] != names.KIND:
            self._owned[key].add(identity)
        return key

    def remove(self, manifest: Manifest) -> Key | None:
        """Remove an object unless a newer one has its name; returns the key of its resource."""
        identity = identity_of(manifest)
        known = self._objects.get(identity)
        if known is not None and version_of(known) > version_of(manifest):
            return None
        self._gone[identity] = max(self._gone.get(identity, -1), version_of(manifest))
        if known is None:
            return None
        self._unlink(known)
        del self._objects[identity]
        return key_of(known)

    def retain(
        self, kind: str, namespace: str | None, listed: set[Identity], version: int
    ) -> set[Key]:
        """Remove objects that a list as of `version` lacks; returns the keys of their resources.

        Objects that were created after the list stay.
        """
        gone = [
            manifest
            for identity, manifest in self._objects.items()
            if identity[0] == kind
            and namespace in (None, identity[1])
            and identity not in listed
            and version_of(manifest) <= version
        ]
        keys = {self.remove(manifest) for manifest in gone}
        for identity in [each for each in self._gone if each[0] == kind]:
            if self._gone[identity] <= version:  # no later list can contain it
                del self._gone[identity]
        return {key for key in keys if key is not None}

    def observe(self, key: Key) -> Observed | None:
        """The known state of a custom resource, or None if it does not exist."""
        resource = self._objects.get((names.KIND, key.namespace, key.name))
        if resource is None:
            return None
        owned = [self._objects[identity] for identity in self._owned.get(key, ())]
        children = {
            ChildId(each["kind"], each["metadata"]["name"]): each
            for each in owned
            if each["kind"] not in _APART
        }
        pods = sorted(
            (each for each in owned if each["kind"] == POD.kind),
            key=lambda pod: str(pod["metadata"]["name"]),
        )
        slices = tuple(each for each in owned if each["kind"] == ENDPOINT_SLICE.kind)
        trials = _in_order(each for each in owned if each["kind"] == TRIAL.kind)
        revisions = _in_order(each for each in owned if each["kind"] == CONTROLLER_REVISION.kind)
        return Observed(
            resource, children, tuple(pods), slices=slices, trials=trials, revisions=revisions
        )

    def resources(self) -> list[Manifest]:
        """Every known resource."""
        # copied first: metrics are read by another thread
        return [each for each in list(self._objects.values()) if each["kind"] == names.KIND]

    def known_keys(self) -> list[Key]:
        """Keys of every known resource."""
        return [key for each in self.resources() if (key := key_of(each)) is not None]

    def _unlink(self, manifest: Manifest) -> None:
        key = key_of(manifest)
        if key is not None and manifest["kind"] != names.KIND:
            self._owned[key].discard(identity_of(manifest))
            if not self._owned[key]:
                del self._owned[key]


def _in_order(manifests: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """By age, then by name: creation times have a resolution of a second."""
    by_age = sorted(
        manifests,
        key=lambda each: (
            str(each["metadata"].get("creationTimestamp", "")),
            str(each["metadata"]["name"]),
        ),
    )
    return tuple(by_age)
