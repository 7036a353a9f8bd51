"""`unevaluatedProperties`, `unevaluatedItems`, and `contains` where they add little.

A part evaluates a property by its own keywords and by those of schemas that apply to the same
object: of `allOf` and `$ref` always, of `anyOf`, `oneOf` and `if` only where they are valid.
"""

from collections.abc import Iterator

from specdecode_engine.grammar.schemas.parts import (
    Document,
    Part,
    Schema,
    branches,
    is_part,
    named_parts,
)

_IN_PLACE = frozenset(
    {
        "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "dependencies",
        "$ref", "$dynamicRef", "$recursiveRef",
    }
)  # fmt: skip
_EVALUATING = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
_DEPTH = 6


class _Unknown(Exception):
    """Which properties are evaluated depends on the value."""


def rewrite_unevaluated(part: Part, document: Document) -> None:
    """Replace the keywords by `additionalProperties` and `items`."""
    _rewrite_properties(part, document)
    _rewrite_items(part, document)


def _rewrite_properties(part: Part, document: Document) -> None:
    wanted = part.get("unevaluatedProperties")
    if wanted is None:
        return
    if wanted is True or "additionalProperties" in part:  # which evaluates all others
        part.setdefault("additionalProperties", True)
        del part["unevaluatedProperties"]
        return
    try:
        names = {*_names_of_others(part, document, _DEPTH)}
    except _Unknown:
        return
    del part["unevaluatedProperties"]
    properties = named_parts(part, "properties")
    if names - properties.keys():
        part["properties"] = properties | dict.fromkeys(sorted(names - properties.keys()), True)
    part["additionalProperties"] = wanted


def _names_of_others(part: Part, document: Document, depth: int) -> Iterator[str]:
    """Yield the properties that schemas of `allOf` and `$ref` evaluate.

    Raises:
        _Unknown: these are not the same for all values, or not listed.
    """
    if part.keys() & _IN_PLACE - {"allOf", "$ref"} or depth == 0:
        raise _Unknown
    others: list[Schema] = [*branches(part, "allOf")]
    if "$ref" in part:
        others.append({"$ref": part["$ref"]})
    for each in map(document.resolve, others):
        if isinstance(each, bool):
            continue
        if not is_part(each) or each.keys() & _EVALUATING:
            raise _Unknown
        yield from named_parts(each, "properties")
        yield from _names_of_others(each, document, depth - 1)


def _rewrite_items(part: Part, document: Document) -> None:
    wanted = part.get("unevaluatedItems")
    if wanted is None:
        return
    if wanted is True or _has_all_items(part):
        del part["unevaluatedItems"]
        return
    try:
        number = _items_of_others(part, document, _DEPTH)
    except _Unknown:
        return
    del part["unevaluatedItems"]
    first = branches(part, "prefixItems")
    if number is not None:
        part["items"] = wanted
        if number > len(first):
            part["prefixItems"] = [*first, *[True] * (number - len(first))]


def _items_of_others(part: Part, document: Document, depth: int) -> int | None:
    """Return how many first items schemas of `allOf` and `$ref` evaluate; None: all items.

    Raises:
        _Unknown: these are not the same for all values.
    """
    if part.keys() & ((_IN_PLACE | {"contains"}) - {"allOf", "$ref"}) or depth == 0:
        raise _Unknown
    if isinstance(part.get("items"), list):  # of earlier drafts: the first ones alone
        raise _Unknown
    others: list[Schema] = [*branches(part, "allOf")]
    if "$ref" in part:
        others.append({"$ref": part["$ref"]})
    most = 0
    for each in map(document.resolve, others):
        if isinstance(each, bool):
            continue
        if not is_part(each):
            raise _Unknown
        number = _items_of_others(each, document, depth - 1)
        if number is None or "unevaluatedItems" in each or _has_all_items(each):
            return None
        most = max(most, number, len(branches(each, "prefixItems")))
    return most


def _has_all_items(part: Part) -> bool:
    """Whether `items` applies to all items that no other keyword of the part evaluates."""
    return "items" in part and not isinstance(part["items"], list)


def rewrite_contains(part: Part, document: Document) -> None:
    """Drop `contains` that any list fulfils, and its limits without it."""
    del document
    if "contains" not in part:
        part.pop("minContains", None)
        part.pop("maxContains", None)
    elif (
        part.get("minContains") == 0
        and part.get("minContains") is not False
        and not part.keys() & {"maxContains", "unevaluatedItems"}
    ):
        del part["contains"], part["minContains"]


def rewrite_anchors(part: Part, document: Document) -> None:
    """Take a dynamic anchor for a plain one, where nothing refers to it dynamically."""
    if document.has_dynamic_references or not isinstance(part.get("$dynamicAnchor"), str):
        return
    if "$anchor" not in part:
        part["$anchor"] = part.pop("$dynamicAnchor")
