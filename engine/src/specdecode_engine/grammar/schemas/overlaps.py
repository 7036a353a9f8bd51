"""`properties` that a pattern of `patternProperties` describes in the same way.

The library checks both, and fails where both refer to a schema that contains itself.
"""

from specdecode_engine.grammar.json_schema import DIRECT, NAMED
from specdecode_engine.grammar.schemas.parts import (
    ANNOTATIONS,
    Document,
    Part,
    identity,
    is_part,
    named_parts,
)
from specdecode_engine.grammar.schemas.texts.matching import matches

_DEPTH = 32


def rewrite_overlaps(part: Part, document: Document) -> None:
    """Drop a property whose schema is that of a pattern that matches its name."""
    patterns, properties = named_parts(part, "patternProperties"), named_parts(part, "properties")
    if not patterns or not properties:
        return
    left = dict(properties)
    for pattern, schema in patterns.items():
        described = _described(schema)
        for name, value in properties.items():
            document.comparisons -= 1
            if document.comparisons < 0:
                return
            if matches(pattern, name) and _described(value) == described:
                left.pop(name, None)
    part["properties"] = left


def _described(schema: object) -> str:
    """Return a text that is the same for schemas that differ in annotations alone."""
    return identity(_without_annotations(schema, _DEPTH))


def _without_annotations(schema: object, depth: int) -> object:
    if depth == 0:
        return schema
    if isinstance(schema, list):
        return [_without_annotations(each, depth - 1) for each in schema]
    if not is_part(schema):
        return schema
    kept = {key: value for key, value in schema.items() if key not in ANNOTATIONS}
    for key in kept.keys() & set(NAMED):
        parts = named_parts(kept, key)
        kept[key] = {name: _without_annotations(each, depth - 1) for name, each in parts.items()}
    for key in kept.keys() & set(DIRECT):
        kept[key] = _without_annotations(kept[key], depth - 1)
    return kept
