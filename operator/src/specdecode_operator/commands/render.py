"""Renders a file without a cluster: the owned objects, or only the boot file."""

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from specdecode_api import names
from specdecode_api.boot import EngineBoot
from specdecode_api.model_uri import (
    HubLocation,
    ImageLocation,
    NodeLocation,
    PvcLocation,
    parse_uri,
)
from specdecode_operator import owned
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.resource import Resource, ResourceError, is_resource, parse
from specdecode_operator.settings import DEFAULT_VLLM_IMAGE


class FileError(Exception):
    """A file that cannot be rendered; the message contains value, path and remedy."""


def read(path: str, text: str) -> list[Resource]:
    """Read every custom resource of a YAML text; `path` is for messages.

    Raises:
        FileError: the text is not YAML, has no resource, or a resource is invalid.
    """
    try:
        documents: list[Any] = list(yaml.safe_load_all(text))
    except yaml.YAMLError as error:
        raise FileError(f"{path} is not YAML: {error}") from None
    found = [document for document in documents if is_resource(document)]
    if not found:
        raise FileError(
            f"{path} has no {names.KIND}; write one with apiVersion: {names.API_VERSION}"
        )
    return [_parse(path, document) for document in found]


def _parse(path: str, document: Manifest) -> Resource:
    try:
        return parse(document)
    except ResourceError as error:
        raise _file_error(path, error.sentences) from None


def render(
    path: str,
    text: str,
    engine_image: str,
    router_image: str,
    vllm_image: str = DEFAULT_VLLM_IMAGE,
) -> str:
    """The owned objects of every custom resource in a YAML text, as one YAML stream."""
    manifests: list[Manifest] = []
    for resource in read(path, text):
        is_vllm = resource.spec.engine.runtime == "VLLM"
        built = _build(path, resource, vllm_image if is_vllm else engine_image).children
        built = (*owned.network_policies(resource, "", ()), *built)
        routed = owned.routed(built, resource, router_image, is_serving=True)
        known = owned.with_token(routed, (), resource.uid, is_wanted=True)
        manifests += (owned.size_limited(each, None) for each in known)
        manifests += owned.inference_pools(resource)
    return yaml.dump_all(manifests, Dumper=_Dumper, sort_keys=False, width=100)


def boot(path: str, text: str, models: Path | None) -> str:
    """The boot file of the only custom resource in a YAML text.

    With `models`, paths are local: pvc://CLAIM/FOLDER is MODELS/FOLDER, hf://ORG/NAME is
    MODELS/ORG/NAME, oci://REGISTRY/REPOSITORY is MODELS/REPOSITORY.
    """
    resources = read(path, text)
    if len(resources) > 1:
        found = ", ".join(resource.name for resource in resources)
        raise FileError(f"{path} has {len(resources)} resources ({found}); keep one of them")
    if resources[0].spec.engine.runtime != "Specdecode":
        raise FileError(
            f"{path} has engine.runtime {resources[0].spec.engine.runtime}, which has no boot "
            "file; render shows its command line"
        )
    built = _build(path, resources[0], "unused")
    if models is None:
        return owned.boot_text(built.boot)
    return owned.boot_text(_localised(built.boot, resources[0], models))


def _build(path: str, resource: Resource, engine_image: str) -> owned.Built:
    try:
        return owned.build(resource, engine_image)
    except ResourceError as error:
        raise _file_error(path, error.sentences) from None


def _file_error(path: str, sentences: Sequence[str]) -> FileError:
    return FileError("\n".join(f"{path}: {each}" for each in sentences))


def _localised(boot_file: EngineBoot, resource: Resource, models: Path) -> EngineBoot:
    def local(uri: str) -> str:
        match parse_uri(uri):
            case PvcLocation(folder=folder) | HubLocation(repository=folder):
                return str(models / PurePosixPath(folder))
            case ImageLocation(reference=reference):
                _, _, repository = reference.partition("@")[0].partition("/")
                return str(models / PurePosixPath(repository.partition(":")[0]))
            case NodeLocation(folder=folder):
                return folder

    data = json.loads(boot_file.model_dump_json())
    data["model"]["path"] = local(resource.spec.model.uri)
    if resource.spec.speculation.draft is not None:
        data["speculation"]["draft_path"] = local(resource.spec.speculation.draft.uri)
    data["server"]["host"] = "127.0.0.1"
    return EngineBoot.model_validate(data)


class _Dumper(yaml.SafeDumper):
    """Writes multi-line text as a block, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
