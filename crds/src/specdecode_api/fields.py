"""Every field of a schema as a flat list: what the reference prints and what a typo is held to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specdecode_api.document import CHANGE_KEY
from specdecode_api.rules import VALIDATIONS_KEY

Path = tuple[str, ...]
ANY_KEY = "*"
"""Stands in a path for a key that the user chooses."""
ANY_ITEM = "[]"
"""Stands in a path for an item of a list."""


@dataclass(frozen=True, slots=True)
class FieldRow:
    """One field: where it stands and all that its schema says about it."""

    path: Path
    schema: Mapping[str, Any]
    is_required: bool

    @property
    def change(self) -> str:
        """Say how a change reaches running engines; empty where the parts of it decide."""
        return str(self.schema.get(CHANGE_KEY, ""))

    @property
    def rules(self) -> tuple[Mapping[str, str], ...]:
        """List the rules that the API server checks here."""
        return tuple(self.schema.get(VALIDATIONS_KEY, ()))


def fields(schema: Mapping[str, Any]) -> list[FieldRow]:
    """List the fields of a JSON schema, or of a structural one, parents before their parts."""
    return list(_walk(schema, schema.get("$defs", {}), ()))


def _walk(schema: Mapping[str, Any], defs: Mapping[str, Any], path: Path) -> Iterator[FieldRow]:
    required = schema.get("required", ())
    for name, reference in schema.get("properties", {}).items():
        child = _plain(reference, defs)
        yield FieldRow((*path, name), child, name in required)
        yield from _walk(child, defs, (*path, name))
    for key, values in _contents(schema):
        yield from _walk(_plain(values, defs), defs, (*path, key))


def _contents(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give the schemas of what stands in a map or in a list."""
    maps = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    contents = [*((ANY_KEY, values) for values in maps), (ANY_ITEM, schema.get("items"))]
    yield from ((key, values) for key, values in contents if isinstance(values, Mapping))


def _plain(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Put what a schema refers to in its place, and take `X | null` for X."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return _plain({**choices[0], **rest}, defs)
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _plain({**defs[schema["$ref"].removeprefix("#/$defs/")], **rest}, defs)
    return schema
