"""`$ref` next to keywords that add nothing, which keep the library from following circular ones."""

from specdecode_engine.grammar.schemas.parts import (
    ANNOTATIONS,
    Document,
    Part,
    Schema,
    branches,
    types_of,
)

_KEPT = frozenset({"$id", "$anchor", "$defs", "definitions"})
"""What other references may point to."""


def rewrite_reference(part: Part, document: Document) -> None:
    """Drop annotations, and a type that all values of the targets have."""
    if part is document.root or part.keys() - ANNOTATIONS - {"$ref", "anyOf", "type"}:
        return
    if ("$ref" in part) == ("anyOf" in part):
        return
    targets = branches(part, "anyOf") or [{"$ref": part.get("$ref")}]
    declared = types_of({"type": part.get("type")})
    if not all(_types(each, document) <= declared for each in targets):
        return
    for key in part.keys() & (ANNOTATIONS | {"type"}) - _KEPT:
        del part[key]


def _types(schema: Schema, document: Document) -> frozenset[str]:
    return types_of(document.resolve(schema))
