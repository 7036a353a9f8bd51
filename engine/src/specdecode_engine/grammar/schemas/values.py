"""Keywords of single values: limits, and lists without repeated items."""

from itertools import permutations

from specdecode_engine.grammar.schemas.numbers import COUNTS
from specdecode_engine.grammar.schemas.parts import (
    Document,
    Part,
    finite_values,
    identity,
    is_part,
    strings,
    types_of,
)

_OTHER_LISTS = frozenset({"prefixItems", "contains", "additionalItems", "enum", "const"})
_MOST_UNIQUE = 4
"""Values of which all sequences without repetition are listed: 65 for four."""


def rewrite_limits(part: Part, document: Document) -> None:
    """Write whole numbers of limits without a fraction, and drop what `required` implies."""
    del document
    for key in COUNTS:
        value = part.get(key)
        if isinstance(value, float) and value.is_integer():
            part[key] = int(value)
    lower, names = part.get("minProperties"), strings(part.get("required")) or []
    if type(lower) is int and 0 <= lower <= len(set(names)):
        del part["minProperties"]


def rewrite_unique_items(part: Part, document: Document) -> None:
    """Replace `uniqueItems` of few values by the lists that there are."""
    if part.get("uniqueItems") is False or part.get("maxItems") in (0, 1):
        part.pop("uniqueItems", None)
        return
    if part.get("uniqueItems") is not True or part.get("type") != "array":
        return
    items = document.resolve(part.get("items"))
    values = _listed(items) if is_part(items) else None
    if values is None or len(values) > _MOST_UNIQUE or part.keys() & _OTHER_LISTS:
        return
    low, high = part.get("minItems", 0), part.get("maxItems", len(values))
    if type(low) is not int or type(high) is not int:
        return
    counts = range(low, min(high, len(values)) + 1)
    part["enum"] = [list(each) for count in counts for each in permutations(values, count)]
    for key in ("uniqueItems", "items", "minItems", "maxItems"):
        part.pop(key, None)


def _listed(items: Part) -> list[object] | None:
    """Return all values of a schema, if it lists them and has no other keyword."""
    if items.keys() - {"type", "enum", "const", "title", "description", "default", "examples"}:
        return None
    values = finite_values(items)
    if values is None:
        return [True, False] if types_of(items) == {"boolean"} else None
    permitted = types_of(items)
    different = {identity(value): value for value in values}
    return [value for value in different.values() if types_of({"const": value}) <= permitted]
