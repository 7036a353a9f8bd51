"""The JSON types that a schema permits, through references and combinations of schemas.

As JSON Schema 2020-12 defines the keywords: https://json-schema.org/draft/2020-12
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

ANY_TYPE = frozenset({"string", "number", "boolean", "array", "object", "null"})
"""Integers are numbers here, as 3.0 is an integer in JSON Schema."""
MAX_DEPTH = 32
"""Schemas nested deeper, or references followed further, permit every type."""

_NOTHING: frozenset[str] = frozenset()
_TYPE_NAMES = {"integer": "number"}
_JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def type_of(value: object) -> str:
    """Return the JSON type of a decoded value."""
    return _JSON_TYPES[type(value)]


def is_string(schema: object) -> bool:
    """Whether a schema names type string, and only that, itself."""
    return isinstance(schema, Mapping) and schema.get("type") in ("string", ["string"])


def property_of(schema: object, key: str) -> object:
    """Return the schema of a property; None if it has none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties.get(key) if isinstance(properties, Mapping) else None


def types_of(schema: object, key: str) -> frozenset[str]:
    """Return the types that a schema of parameters permits for one; every type if it is unknown.

    It reads `type`, `enum`, `const`, `anyOf`, `oneOf`, `allOf` and `$ref` within the schema.
    """
    return _TypeReader(schema).read(property_of(schema, key), 0)


class _TypeReader:
    """Reads each target of a reference once, so that the work is linear in the schema.

    Args:
        root: the schema that references point into.
    """

    def __init__(self, root: object) -> None:
        self._root = root
        self._targets: dict[str, frozenset[str]] = {}

    def read(self, schema: object, depth: int) -> frozenset[str]:
        if schema is False:
            return _NOTHING
        if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
            return ANY_TYPE
        types = _named(schema.get("type"))
        if isinstance(schema.get("enum"), list):
            types &= _of_values(schema["enum"])
        if "const" in schema:
            types &= _of_values([schema["const"]])
        if isinstance(schema.get("$ref"), str):
            types &= self._target(schema["$ref"], depth)
        for keyword in ("anyOf", "oneOf"):
            if isinstance(schema.get(keyword), list):
                types &= _NOTHING.union(*(self.read(each, depth + 1) for each in schema[keyword]))
        if isinstance(schema.get("allOf"), list):
            types = types.intersection(*(self.read(each, depth + 1) for each in schema["allOf"]))
        return types

    def _target(self, reference: str, depth: int) -> frozenset[str]:
        """Return the types of a reference's target; one that refers to itself adds none."""
        if reference not in self._targets:
            self._targets[reference] = _NOTHING
            self._targets[reference] = self.read(_find(self._root, reference), depth + 1)
        return self._targets[reference]


def _named(names: object) -> frozenset[str]:
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, list):
        return ANY_TYPE
    return frozenset(_TYPE_NAMES.get(each, each) for each in names if isinstance(each, str))


def _of_values(values: Iterable[object]) -> frozenset[str]:
    return frozenset(map(type_of, values))


def _find(root: object, reference: str) -> object:
    """Return what a JSON pointer in a fragment points to; None if there is nothing."""
    if not reference.startswith("#"):
        return None
    found: Any = root
    for part in unquote(reference[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and key in found:
            found = found[key]
        elif isinstance(found, Sequence) and key.isdecimal() and int(key[:6]) < len(found):
            found = found[int(key[:6])]
        else:
            return None
    return found
