"""Every field of a schema as a flat list, for the reference and for suggestions after a typo."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from specdecode_api.base import CHANGE_KEY, Change
from specdecode_api.rules import VALIDATIONS_KEY

Path = tuple[str, ...]
ANY_KEY = "*"
"""Placeholder in a path for a key that the user chooses."""
ANY_ITEM = "[]"
"""Placeholder in a path for an item of a list."""


@dataclass(frozen=True, slots=True)
class FieldDescription:
    """One field: its path and its schema.

    `change` is a `Change`; empty if the nested fields decide.
    """

    path: Path
    schema: Mapping[str, Any]
    is_required: bool
    change: str

    @property
    def rules(self) -> tuple[Mapping[str, str], ...]:
        return tuple(self.schema.get(VALIDATIONS_KEY, ()))


def field_descriptions(schema: Mapping[str, Any]) -> list[FieldDescription]:
    """List the fields of a JSON schema, or of a structural one, parents before their parts."""
    return list(_walk(schema, schema.get("$defs", {}), ()))


def _walk(
    schema: Mapping[str, Any], defs: Mapping[str, Any], path: Path
) -> Iterator[FieldDescription]:
    required = schema.get("required", ())
    for name, reference in schema.get("properties", {}).items():
        child = _plain(reference, defs)
        below = list(_walk(child, defs, (*path, name)))
        change = child.get(CHANGE_KEY, "" if below else Change.RESTART)
        yield FieldDescription((*path, name), child, name in required, change)
        yield from below
    for key, values in _contents(schema):
        yield from _walk(_plain(values, defs), defs, (*path, key))


def _contents(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the schemas of the values of a map or the items of a list."""
    maps = [*schema.get("patternProperties", {}).values(), schema.get("additionalProperties")]
    contents = [*((ANY_KEY, values) for values in maps), (ANY_ITEM, schema.get("items"))]
    yield from ((key, values) for key, values in contents if isinstance(values, Mapping))


def _plain(schema: Mapping[str, Any], defs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve references, and reduce `X | null` to X."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
    if len(choices) == 1:
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return _plain({**choices[0], **rest}, defs)
    if "$ref" in schema:
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return _plain({**defs[schema["$ref"].removeprefix("#/$defs/")], **rest}, defs)
    return schema
