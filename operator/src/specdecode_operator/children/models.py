"""Where checkpoints lie: a model's URI as a volume, a mount and a path inside the pod."""

from dataclasses import dataclass
from pathlib import PurePosixPath

from specdecode_api import names
from specdecode_api.location import ClaimLocation, parse_uri
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.kinds import Manifest


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint's place: a volume source and the folder inside it."""

    source: Manifest
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
    location = parse_uri(uri)
    if isinstance(location, ClaimLocation):
        claim = {"claimName": location.claim, "readOnly": True}
        return Place({"persistentVolumeClaim": claim}, location.folder)
    return Place({"hostPath": {"path": location.folder, "type": "Directory"}}, "")


def mounts(spec: Spec) -> Mounts:
    """Mount what the target and the draft lie on, read-only, and each claim once.

    Claims are mounted whole and not by `subPath`: the kubelet creates a missing sub-path, so a
    misspelt folder would appear in the user's volume instead of in an error message.
    """
    target = locate(spec.model.uri)
    volumes, volume_mounts = _mount("target", target)
    target_path = _inside("target", target)
    draft_path = None
    if spec.speculation.draft is not None:
        draft = locate(spec.speculation.draft.uri)
        if draft.source == target.source:
            draft_path = _inside("target", draft)
        else:
            draft_path = _inside("draft", draft)
            more_volumes, more_mounts = _mount("draft", draft)
            volumes += more_volumes
            volume_mounts += more_mounts
    return Mounts(volumes, volume_mounts, target_path, draft_path)


def _mount(role: str, place: Place) -> tuple[list[Manifest], list[Manifest]]:
    volume = {"name": f"model-{role}", **place.source}
    mount = {
        "name": f"model-{role}",
        "mountPath": f"{names.MODELS_FOLDER}/{role}",
        "readOnly": True,
    }
    return [volume], [mount]


def _inside(role: str, place: Place) -> str:
    return str(PurePosixPath(names.MODELS_FOLDER, role, place.folder))
