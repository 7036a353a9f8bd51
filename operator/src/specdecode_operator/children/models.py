"""Where checkpoints lie: a model's URI as a volume, a mount and a path inside the pod."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from specdecode_api import names
from specdecode_api.location import (
    ClaimLocation,
    HubLocation,
    ImageLocation,
    NodeLocation,
    parse_uri,
)
from specdecode_api.report import Role
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.children import fetch
from specdecode_operator.kinds import Manifest


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint's place: a volume source and the folder inside it.

    No source means that the model is fetched, into volumes that all fetched models share.
    """

    source: Manifest | None
    folder: str


@dataclass(frozen=True, slots=True)
class Mounts:
    """Volumes and mounts of a pod, and the paths at which its engine finds the checkpoints."""

    volumes: list[Manifest]
    volume_mounts: list[Manifest]
    target_path: str
    draft_path: str | None


def locate(uri: str) -> Place:
    """Place of a model URI that the contract accepted."""
    match parse_uri(uri):
        case ClaimLocation(claim=claim, folder=folder):
            return Place(_claim(claim), folder)
        case ImageLocation(reference=reference):
            return Place({"image": {"reference": reference, "pullPolicy": "IfNotPresent"}}, "")
        case NodeLocation(folder=folder):
            return Place({"hostPath": {"path": folder, "type": "Directory"}}, "")
        case HubLocation():
            return Place(None, "")


def mounts(spec: Spec) -> Mounts:
    """Mount what the target and the draft lie on, read-only, and each claim once.

    Claims are mounted whole and not by `subPath`: the kubelet creates a missing sub-path, so a
    misspelt folder would appear in the user's volume instead of in an error message.
    """
    places = {Role.TARGET: locate(spec.model.uri)}
    if spec.speculation.draft is not None:
        places[Role.DRAFT] = locate(spec.speculation.draft.uri)
    # The cache is mounted anyway, and some kubelets wait for ever for a claim that is named twice.
    cache = _claim(spec.download.cache_claim or "") if fetch.shares_cache(spec) else None
    volumes: list[Manifest] = []
    volume_mounts: list[Manifest] = []
    paths: dict[Role, str] = {}
    for role, place in places.items():
        if place.source is None:
            paths[role] = fetch.fetched_path(role)
        elif place.source == cache:
            paths[role] = str(PurePosixPath(names.CACHE_FOLDER, place.folder))
        elif role is Role.DRAFT and place.source == places[Role.TARGET].source:
            paths[role] = _inside(Role.TARGET, place)
        else:
            paths[role] = _inside(role, place)
            volumes.append({"name": f"model-{role}", **place.source})
            volume_mounts.append(_mount(role))
    if fetch.fetched(spec):
        volumes += fetch.volumes(spec)
        volume_mounts += fetch.volume_mounts(read_only=True)
    return Mounts(volumes, volume_mounts, paths[Role.TARGET], paths.get(Role.DRAFT))


def _claim(name: str) -> Manifest:
    return {"persistentVolumeClaim": {"claimName": name, "readOnly": True}}


def _mount(role: Role) -> Manifest:
    return {
        "name": f"model-{role}",
        "mountPath": f"{names.MODELS_FOLDER}/{role}",
        "readOnly": True,
    }


def _inside(role: Role, place: Place) -> str:
    return str(PurePosixPath(names.MODELS_FOLDER, role, place.folder))
