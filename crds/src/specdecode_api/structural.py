"""From the JSON schema that pydantic writes to the structural schema that the API server takes.

Keywords that the server would reject or drop silently are translated or rejected here. Every
string, list and map must have a bound: the server estimates the cost of a rule from it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

_NULL = {"type": "null"}
_INT_OR_STRING = "x-kubernetes-int-or-string"
_KEEP_UNKNOWN = "x-kubernetes-preserve-unknown-fields"

# JSON schema keywords that the API server does not know, so that their meaning would be lost.
_REFUSED = {
    "allOf": "write one type",
    "oneOf": "write one type and a rule",
    "not": "write a rule",
    "prefixItems": "use list[...]",
    "patternProperties": "check the keys with a rule",
    "propertyNames": "check the keys with a rule",
    "discriminator": "write one type and a rule",
}
_DROPPED = frozenset({"title", "examples", "$schema", "$defs", "$ref"})


class SchemaError(Exception):
    """A type of the contract cannot be written as a structural schema."""


def structural(schema: Mapping[str, Any]) -> Schema:
    """Translate a JSON schema of pydantic, validation mode, names by alias."""
    return _translate(schema, _Place(schema.get("$defs", {}), "", ()))


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of the translation: definitions, path for errors, enclosing references."""

    defs: Mapping[str, Any]
    path: str
    above: tuple[str, ...]

    def child(self, name: str) -> "_Place":
        return _Place(self.defs, f"{self.path}.{name}", self.above)

    def within(self, reference: str) -> "_Place":
        if reference in self.above:
            raise self.error(f"{reference} contains itself, and a structural schema is finite")
        return _Place(self.defs, self.path, (*self.above, reference))

    def error(self, message: str) -> SchemaError:
        return SchemaError(f"{self.path or '.'}: {message}")


def _translate(schema: Mapping[str, Any], place: _Place) -> Schema:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        others = {key: value for key, value in schema.items() if key not in _DROPPED}
        return _translate({**place.defs[name], **others}, place.within(name))
    if "anyOf" in schema:
        return _translate(_choose(schema, place), place)
    for keyword, remedy in _REFUSED.items():
        if keyword in schema:
            raise place.error(f"{keyword} is not structural: {remedy}")
    kept = {key: value for key, value in schema.items() if key not in _DROPPED}
    _write_exclusive_bounds(kept)
    if "const" in kept:
        kept["enum"] = [kept.pop("const")]
    if "default" in kept:
        kept["default"] = _without_nulls(kept["default"])
    return _by_type(kept, place)


def _choose(schema: Mapping[str, Any], place: _Place) -> Schema:
    """Reduce `X | None` to X and `int | str` to the type that Kubernetes has for it."""
    others = {key: value for key, value in schema.items() if key != "anyOf"}
    choices = [choice for choice in schema["anyOf"] if choice != _NULL]
    if len(choices) < len(schema["anyOf"]) and others.get("default", ...) is None:
        del others["default"]
    if len(choices) == 1:
        return {**choices[0], **others}
    if sorted(choice.get("type", "") for choice in choices) == ["integer", "string"]:
        integer, string = sorted(choices, key=lambda choice: str(choice["type"]))
        merged = {**integer, **string, **others, _INT_OR_STRING: True}
        del merged["type"]
        return merged
    raise place.error("a choice of types is not structural: write one type and a rule")


def _by_type(schema: Schema, place: _Place) -> Schema:
    if schema.get(_INT_OR_STRING):
        return _bounded(schema, "maxLength", place)
    match schema.get("type"):
        case "object":
            return _translate_object(schema, place)
        case "array":
            return _translate_array(schema, place)
        case "string":
            has_bound = "enum" in schema or schema.get("format") == "date-time"
            return schema if has_bound else _bounded(schema, "maxLength", place)
        case "integer":
            return {"format": _integer_format(schema), **schema}
        case "number":
            return {"format": "double", **schema}
        case "boolean":
            return schema
        case kind:
            raise place.error(f"type {kind} is not structural: give the value a type")


def _translate_object(schema: Schema, place: _Place) -> Schema:
    properties = schema.get("properties")
    if properties is not None:
        schema.pop("additionalProperties", None)  # the server prunes or rejects unknown fields
        schema["properties"] = {
            name: _translate(child, place.child(name)) for name, child in properties.items()
        }
        return schema
    if schema.get(_KEEP_UNKNOWN):
        return _bounded(schema, "maxProperties", place)
    values = schema.get("additionalProperties")
    if not isinstance(values, Mapping):
        raise place.error("an object of any shape is not structural: give its fields a type")
    schema["additionalProperties"] = _translate(values, place.child("*"))
    return _bounded(schema, "maxProperties", place)


def _translate_array(schema: Schema, place: _Place) -> Schema:
    schema["items"] = _translate(schema.get("items", {}), place.child("*"))
    if schema.pop("uniqueItems", False):
        if schema["items"].get("type") in ("object", "array"):
            raise place.error("a set holds single values: use a list and a rule")
        schema["x-kubernetes-list-type"] = "set"
    schema.setdefault("x-kubernetes-list-type", "atomic")
    return _bounded(schema, "maxItems", place)


def _bounded(schema: Schema, keyword: str, place: _Place) -> Schema:
    if keyword not in schema:
        raise place.error(f"no {keyword}: the cost of a rule cannot be estimated without it")
    return schema


def _write_exclusive_bounds(schema: Schema) -> None:
    # A number in current JSON schema, a flag next to the bound in the draft that Kubernetes uses.
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if exclusive in schema:
            schema[bound] = schema[exclusive]
            schema[exclusive] = True


def _integer_format(schema: Mapping[str, Any]) -> str:
    lowest, highest = schema.get("minimum", -math.inf), schema.get("maximum", math.inf)
    return "int32" if lowest >= -(2**31) and highest < 2**31 else "int64"


def _without_nulls(value: Any) -> Any:
    """Remove nulls from a default: null would have to be a value of the field."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
