"""Reads a `SpecDecodeDeployment` from JSON or YAML data, or says in sentences what is wrong."""

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel, ValidationError

from specdecode_api import names
from specdecode_api.v1alpha1 import Spec, SpecDecodeDeployment
from specdecode_operator.kinds import Manifest


class ResourceError(ValueError):
    """The resource cannot be understood; `sentences` name value, place and remedy."""

    def __init__(self, *sentences: str) -> None:
        super().__init__("; ".join(sentences))
        self.sentences = sentences


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource, its spec parsed."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: Spec
    ignored: tuple[str, ...] = ()
    """Fields that are left out because a newer definition than ours served them."""


def parse_stored(manifest: Manifest) -> Resource:
    """Parse a resource as the API server stores it.

    What the definition does not know never gets there, so a field that we do not know comes from a
    definition that is newer than this operator, often as a default: it is left out and named. Were
    it refused, every upgrade would call all resources invalid until the operator follows.

    Raises:
        ResourceError: with one sentence per fault.
    """
    try:
        return _resource(manifest)
    except ValidationError as error:
        ignored: list[str] = []
        known = {"spec": copy.deepcopy(manifest.get("spec"))}
        for fault in error.errors():
            if fault["type"] == "extra_forbidden" and _drop(known, fault["loc"]):
                ignored.append(".".join(map(str, fault["loc"])))
    return replace(parse({**manifest, **known}), ignored=tuple(ignored))


def parse(manifest: Manifest) -> Resource:
    """Parse a resource as a file gives it.

    Digit keys that YAML read as numbers are taken as text, as kubectl does.

    Raises:
        ResourceError: with one sentence per fault.
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
    """Remove what lies at a place; tell whether there was something."""
    inside: Any = document
    for part in location[:-1]:
        inside = inside.get(part) if isinstance(inside, dict) else None
    return isinstance(inside, dict) and inside.pop(location[-1], None) is not None


def sentences(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """One sentence per fault of a pydantic error: place, value, what would do."""
    found = []
    for fault in error.errors():
        place = ".".join(str(part) for part in fault["loc"]) or "the resource"
        if fault["type"] == "extra_forbidden":
            found.append(f"{place} is not a known field{_nearest(model, fault['loc'])}")
        elif fault["type"] == "missing":
            found.append(f"{place} is missing; set it")
        else:
            message = fault["msg"].removeprefix("Value error, ")
            value = fault["input"]
            shown = "" if isinstance(value, (dict, BaseModel)) else f" {value!r}"
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
    """Whether a YAML document is a resource of ours, any version."""
    return (
        isinstance(manifest, dict)
        and manifest.get("kind") == names.KIND
        and str(manifest.get("apiVersion", "")).startswith(f"{names.GROUP}/")
    )
