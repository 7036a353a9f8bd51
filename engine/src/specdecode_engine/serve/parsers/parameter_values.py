"""Arguments that a model writes one parameter at a time: text, or JSON where the schema allows."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

ONLY_TEXT = frozenset({"string"})
_JSON_TYPES: dict[type, frozenset[str]] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"integer", "number"}),  # 3.0
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}

quoted = partial(json.dumps, ensure_ascii=False)


def quoted_part(text: str) -> str:
    """Return part of a JSON string."""
    return quoted(text)[1:-1]


def types_of(schema: object, key: str) -> frozenset[str] | None:
    """Return the JSON types that a schema allows for a parameter; None if that is unknown."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    found = properties.get(key) if isinstance(properties, Mapping) else None
    types = found.get("type") if isinstance(found, Mapping) else None
    if isinstance(types, str):
        return frozenset({types})
    if isinstance(types, list):
        return frozenset(each for each in types if isinstance(each, str))
    return None


def as_json(text: str, types: frozenset[str] | None) -> str:
    """Return a value as JSON: as it is if it is JSON of one of the types, else as a string."""
    return text.strip() if is_json(text, types) else quoted(text)


def is_json(text: str, types: frozenset[str] | None) -> bool:
    """Whether a text is a JSON value of one of the types."""
    try:
        value: Any = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return types is None or bool(_JSON_TYPES[type(value)] & types)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
