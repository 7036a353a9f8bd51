"""What the rewriting of all keywords reads in a schema: references, types, values."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeGuard

Part = dict[str, object]
"""A schema that is an object."""
Schema = object
"""A schema: an object, true or false. Anything else is left to the library, which refuses it."""

FRACTION = "fraction"
"""Numbers that are not integers, which no schema names by themselves."""
TYPES = frozenset({"null", "boolean", "object", "array", "string", "integer", FRACTION})
ANNOTATIONS = frozenset(
    {
        "title", "description", "default", "examples", "example", "deprecated", "readOnly",
        "writeOnly", "$comment", "$schema", "$id", "$anchor", "$defs", "definitions",
        "discriminator",
    }
)  # fmt: skip
MOST_BRANCHES = 64
"""Branches that are compared in pairs; a request that has more waits for the library alone."""


@dataclass(slots=True)
class Document:
    """A whole schema, in which references point.

    `is_local`: all references are pointers from its root: no part has a base of its own.
    """

    root: Part
    is_local: bool
    has_dynamic_references: bool = False
    named: dict[tuple[str, str], str] = field(default_factory=dict)
    """References to definitions that were added, by the original reference and what it requires."""
    comparisons: int = 20_000
    """Pairs of schemas that may still be compared."""
    counted: int = 96
    """Branches of counted properties that may still be written: the library multiplies those of
    objects in objects."""
    added: list[Part] = field(default_factory=list)
    """Definitions that were added and not rewritten yet."""

    def resolve(self, schema: Schema) -> Schema:
        """Follow a reference without other keywords; else return the schema itself."""
        seen = set[str]()
        while is_part(schema) and isinstance(target := schema.get("$ref"), str):
            if schema.keys() - ANNOTATIONS - {"$ref"}:
                return schema
            found = self._target(target)
            if found is None or target in seen:
                return schema
            seen.add(target)
            schema = found
        return schema

    def define(self, part: Part) -> str:
        """Add a definition, which has to be rewritten too, and return a reference to it."""
        definitions = self.root.setdefault("$defs", {})
        assert isinstance(definitions, dict)
        number = len(definitions)
        while (name := f"tagged_{number}") in definitions:
            number += 1
        definitions[name] = part
        self.added.append(part)
        return f"#/$defs/{name}"

    def _target(self, target: str) -> Schema | None:
        if not self.is_local or not target.startswith("#/") or "%" in target:
            return None
        part: object = self.root
        for step in target[2:].split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(part, Mapping) or key not in part:
                return None
            part = part[key]
        return part if is_part(part) or isinstance(part, bool) else None


def is_part(schema: object) -> TypeGuard[Part]:
    return isinstance(schema, dict)


def strings(value: object) -> list[str] | None:
    """Return a list of strings; None if it is something else."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    return None


def named_parts(part: Part, key: str) -> dict[str, Schema]:
    """Return the schemas in an object of schemas; empty if there is none."""
    value = part.get(key)
    return value if isinstance(value, dict) else {}


def branches(part: Part, key: str) -> list[Schema]:
    value = part.get(key)
    return value if isinstance(value, list) else []


def constrain(part: Part, schema: Schema) -> None:
    """Add a schema that values of a part have to match too."""
    part["allOf"] = [*branches(part, "allOf"), schema]


def types_of(schema: Schema) -> frozenset[str]:
    """Return the types of values that `type`, `const` and `enum` permit."""
    if not is_part(schema):
        return frozenset() if schema is False else TYPES
    found = TYPES
    if (values := finite_values(schema)) is not None:
        found = frozenset(_type_of_value(value) for value in values)
    declared = schema.get("type")
    names = [declared] if isinstance(declared, str) else strings(declared)
    return found if names is None else found & expand_types(names)


def expand_types(names: Iterable[str]) -> frozenset[str]:
    """Return the types that names of JSON Schema stand for; a number is an integer or not."""
    return frozenset(
        kind for name in names for kind in (("integer", FRACTION) if name == "number" else (name,))
    )


def names_of_types(types: frozenset[str]) -> list[str] | None:
    """Return the names of types for `type`; None if no name has that meaning."""
    if FRACTION not in types:
        return sorted(types)
    if "integer" not in types:
        return None
    return sorted(types - {"integer", FRACTION} | {"number"})


def finite_values(part: Part) -> list[object] | None:
    """Return the values of `const` and `enum`; None if there is neither."""
    allowed = part.get("enum")
    values = list(allowed) if isinstance(allowed, list) else None
    if "const" in part:
        same = identity(part["const"])
        if values is None or any(identity(value) == same for value in values):
            return [part["const"]]
        return []
    return values


def identity(value: object) -> str:
    """Return a text that is the same for equal JSON values: 1 is 1.0, and true is not 1."""
    return json.dumps(_whole(value), sort_keys=True, ensure_ascii=False)


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    return value


def _type_of_value(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else FRACTION
        case str():
            return "string"
        case list():
            return "array"
    return "object"
