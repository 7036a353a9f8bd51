"""Maps model URIs to volumes, mounts and paths in the pod."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from specdecode_api import names
from specdecode_api.model_uri import (
    HubLocation,
    ImageLocation,
    NodeLocation,
    PvcLocation,
    parse_uri,
)
from specdecode_api.report import ModelRole
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.owned import fetch


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint's volume source, and the folder in that volume.

    No source means that the model is downloaded, to volumes that all downloaded models share.
    """

    source: Manifest | None
    folder: str


@dataclass(frozen=True, slots=True)
class Mounts:
    """Volumes and mounts of a pod, and the paths of the checkpoints in its engine."""

    volumes: list[Manifest]
    volume_mounts: list[Manifest]
    target_path: str
    draft_path: str | None


def locate(uri: str) -> Place:
    """Source and folder of a valid model URI."""
    match parse_uri(uri):
        case PvcLocation(pvc=pvc, folder=folder):
            return Place(_pvc(pvc), folder)
        case ImageLocation(reference=reference):
            return Place({"image": {"reference": reference, "pullPolicy": "IfNotPresent"}}, "")
        case NodeLocation(folder=folder):
            return Place({"hostPath": {"path": folder, "type": "Directory"}}, "")
        case HubLocation():
            return Place(None, "")


def mounts(spec: Spec) -> Mounts:
    """Mount the volumes of target and draft, read-only, and each PVC once.

    A PVC is mounted without `subPath`: the kubelet creates a missing sub-path, so a misspelled
    folder would be created in the user's volume instead of causing an error.
    """
    places = {ModelRole.TARGET: locate(spec.model.uri)}
    if spec.speculation.draft is not None:
        places[ModelRole.DRAFT] = locate(spec.speculation.draft.uri)
    # The cache is mounted anyway, and some kubelets never mount a PVC that is named twice.
    cache = _pvc(spec.download.cache_claim or "") if fetch.shares_cache(spec) else None
    volumes: list[Manifest] = []
    volume_mounts: list[Manifest] = []
    paths: dict[ModelRole, str] = {}
    for role, place in places.items():
        if place.source is None:
            paths[role] = fetch.fetched_path(role)
        elif place.source == cache:
            paths[role] = str(PurePosixPath(names.CACHE_FOLDER, place.folder))
        elif role is ModelRole.DRAFT and place.source == places[ModelRole.TARGET].source:
            paths[role] = _inside(ModelRole.TARGET, place)
        else:
            paths[role] = _inside(role, place)
            volumes.append({"name": f"model-{role}", **place.source})
            volume_mounts.append(_mount(role))
    if fetch.fetched(spec):
        volumes += fetch.volumes(spec)
        volume_mounts += fetch.volume_mounts(read_only=True)
    return Mounts(volumes, volume_mounts, paths[ModelRole.TARGET], paths.get(ModelRole.DRAFT))


def _pvc(name: str) -> Manifest:
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}


def _mount(role: ModelRole) -> Manifest:
    return {
        "name": f"model-{role}",
        "mountPath": f"{names.MODELS_FOLDER}/{role}",
        "readOnly": True,
    }


def _inside(role: ModelRole, place: Place) -> str:
    return str(PurePosixPath(names.MODELS_FOLDER, role, place.folder))
