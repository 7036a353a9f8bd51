"""Parses a `SpecDecodeDeployment`, and formats validation errors as messages."""

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from specdecode_api import names
from specdecode_api.key_mask import quoted
from specdecode_api.v1alpha1 import Spec, SpecDecodeDeployment
from specdecode_operator.objects.kinds import Manifest


class ResourceError(ValueError):
    """An invalid custom resource; `sentences` contain value, path and remedy."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = sentences


@dataclass(frozen=True, slots=True)
class Owner:
    """A custom resource as the owner of objects, whatever its spec is."""

    name: str
    namespace: str
    uid: str


@dataclass(frozen=True, slots=True)
class Resource(Owner):
    """One custom resource with its parsed spec."""

    generation: int
    spec: Spec
    ignored: tuple[str, ...] = ()
    """Unknown fields of a newer CRD, which are ignored."""


def parse_stored(manifest: Manifest) -> Resource:
    """Parse a custom resource as stored by the API server.

    The API server drops fields that its CRD does not know, so an unknown field belongs to a CRD
    that is newer than this operator, often as a default: it is ignored and reported. If it were an
    error, every upgrade would make all resources invalid until the operator is upgraded.

    Raises:
        ResourceError: with one message per error.
    """
    try:
        return _resource(manifest)
    except ValidationError as error:
        ignored: list[str] = []
        known = {"spec": copy.deepcopy(manifest.get("spec"))}
        for each in error.errors():
            if each["type"] == "extra_forbidden" and _drop(known, each["loc"]):
                ignored.append(".".join(map(str, each["loc"])))
    return replace(parse({**manifest, **known}), ignored=tuple(ignored))


def parse(manifest: Manifest) -> Resource:
    """Parse a custom resource from a file.

    Numeric keys of YAML are converted to strings, as by kubectl.

    Raises:
        ResourceError: with one message per error.
    """
    try:
        return _resource(manifest)
    except ValidationError as error:
        raise ResourceError(*sentences(error, SpecDecodeDeployment)) from None


def _resource(manifest: Manifest) -> Resource:
    record = SpecDecodeDeployment.from_resource(_with_text_keys(_parts(manifest)))
    metadata = manifest.get("metadata") or {}
    return Resource(
        name=record.metadata.name,
        namespace=metadata.get("namespace") or "default",
        uid=metadata.get("uid") or "",
        generation=metadata.get("generation") or 0,
        spec=record.spec,
    )


def _parts(manifest: Manifest) -> Manifest:
    return {name: manifest.get(name) for name in ("apiVersion", "kind", "metadata", "spec")}


def _drop(document: Manifest, location: tuple[int | str, ...]) -> bool:
    """Remove the field at a path; returns whether it existed."""
    inside: Any = document
    try:
        for part in location[:-1]:
            inside = inside[part]
    except (KeyError, IndexError, TypeError):
        return False
    return isinstance(inside, dict) and inside.pop(location[-1], None) is not None


def sentences(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """One message per error: path, value, remedy."""
    found = []
    for each in error.errors():
        place = ".".join(str(part) for part in each["loc"]) or "the resource"
        if each["type"] == "extra_forbidden":
            found.append(f"{place} is not a known field{_nearest(model, each['loc'])}")
        elif each["type"] == "missing":
            found.append(f"{place} is missing; set it")
        else:
            message = each["msg"].removeprefix("Value error, ")
            value = each["input"]
            shown = "" if isinstance(value, (dict, BaseModel)) else f" {quoted(value)}"
            found.append(f"{place}:{shown}{', ' if shown else ' '}{_lower_first(message)}")
    return tuple(found)


def _nearest(model: type[BaseModel], location: tuple[int | str, ...]) -> str:
    known = sorted(_aliases(model, location[:-1]))
    close = difflib.get_close_matches(str(location[-1]), known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known here: {', '.join(known)}" if known else "; remove it"


def _aliases(model: type[BaseModel], location: tuple[int | str, ...]) -> set[str]:
    current: Any = model
    for part in location:
        nested = {
            info.alias or name: info.annotation for name, info in current.model_fields.items()
        }
        current = _model_in(nested.get(str(part)))
        if current is None:
            return set()
    return {info.alias or name for name, info in current.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    candidates = getattr(annotation, "__args__", ())
    models = (_model_in(candidate) for candidate in candidates)
    return next((model for model in models if model is not None), None)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _with_text_keys(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(key): _with_text_keys(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_with_text_keys(item) for item in data]
    return data


def is_resource(manifest: Any) -> bool:
    """Whether a YAML document is a `SpecDecodeDeployment` of any version."""
    return (
        isinstance(manifest, dict)
        and manifest.get("kind") == names.KIND
        and str(manifest.get("apiVersion", "")).startswith(f"{names.GROUP}/")
    )
