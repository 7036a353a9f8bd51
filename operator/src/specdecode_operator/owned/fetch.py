"""The init container that downloads models of `hf://` into the cache before the engine starts.

The cache is a PVC shared by pods, or a volume of the pod. The engine finds each model through a
link, because the commit in its path is known only after the download.
"""

from specdecode_api import names
from specdecode_api.model_uri import HubLocation, parse_uri
from specdecode_api.report import ModelRole
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.owned.security import CONTAINER_SECURITY

LINKS_FOLDER = f"{names.MODELS_FOLDER}/fetched"
ALLOWANCE_SECONDS = 4 * 3600
"""Allowance for downloads in the progress deadline of a rollout."""

_CACHE = "model-cache"
_LINKS = "model-links"


def fetched(spec: Spec) -> dict[ModelRole, str]:
    """URIs of models on the hub, by role; none where the runtime downloads them."""
    if spec.engine.runtime != "Specdecode":
        return {}
    draft = spec.speculation.draft
    uris = {
        ModelRole.TARGET: spec.model.uri,
        ModelRole.DRAFT: draft.uri if draft is not None else None,
    }
    return {
        role: uri for role, uri in uris.items() if uri and isinstance(parse_uri(uri), HubLocation)
    }


def fetched_path(role: ModelRole) -> str:
    """Path of a downloaded model in the engine's container."""
    return f"{LINKS_FOLDER}/{role}"


def volumes(spec: Spec) -> list[Manifest]:
    """The cache, limited by the disk of the node where the user sets no limit, and its links."""
    download = spec.download
    if download.cache_claim is not None:
        cache: Manifest = {"persistentVolumeClaim": {"claimName": download.cache_claim}}
    elif download.cache_size_limit is not None:
        cache = {"emptyDir": {"sizeLimit": download.cache_size_limit}}
    else:
        cache = {"emptyDir": {}}
    return [{"name": _CACHE, **cache}, {"name": _LINKS, "emptyDir": {}}]


def volume_mounts(*, read_only: bool) -> list[Manifest]:
    """Mounts of the cache and the links; the engine only reads."""
    more = {"readOnly": True} if read_only else {}
    return [
        {"name": _CACHE, "mountPath": names.CACHE_FOLDER, **more},
        {"name": _LINKS, "mountPath": LINKS_FOLDER, **more},
    ]


def shares_cache(spec: Spec) -> bool:
    """Whether models are downloaded to a PVC, whose files the pods' group must be able to write."""
    return bool(fetched(spec)) and spec.download.cache_claim is not None


def fetch_container(spec: Spec, image: str) -> Manifest:
    """The init container: image and limits of the engine, no accelerator."""
    return {
        "name": names.FETCH_CONTAINER,
        "image": image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        "command": ["specdecode-engine", "fetch"],
        "args": _arguments(spec),
        "env": _environment(spec),
        "resources": _resources(spec),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "boot", "mountPath": names.BOOT_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *volume_mounts(read_only=False),
        ],
    }


def _arguments(spec: Spec) -> list[str]:
    options = {
        **{f"--{role}": uri for role, uri in fetched(spec).items()},
        "--cache": names.CACHE_FOLDER,
        "--links": LINKS_FOLDER,
        "--pins": f"{names.BOOT_FOLDER}/{names.PINS_FILE_NAME}",
        "--port": str(names.MANAGEMENT_PORT),
    }
    return [word for option in options.items() for word in option]


def _environment(spec: Spec) -> list[Manifest]:
    download = spec.download
    plain = {
        "HOME": "/tmp",
        names.VARIABLE_TERMINATION_MESSAGE_PATH: names.TERMINATION_LOG,
        "HF_HUB_DISABLE_TELEMETRY": "1",
        **({"HF_ENDPOINT": download.endpoint} if download.endpoint is not None else {}),
    }
    environment: list[Manifest] = [{"name": name, "value": text} for name, text in plain.items()]
    if download.token_secret is not None:
        key = {"name": download.token_secret.name, "key": download.token_secret.key}
        environment.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}})
    return environment


def _resources(spec: Spec) -> Manifest:
    """Resources of the engine: init containers run before it, so this reserves nothing extra."""
    kinds = {"limits": spec.resources.limits, "requests": spec.resources.requests}
    plain = {
        kind: {name: amount for name, amount in amounts.items() if "/" not in name}
        for kind, amounts in kinds.items()
    }
    return {kind: amounts for kind, amounts in plain.items() if amounts}
