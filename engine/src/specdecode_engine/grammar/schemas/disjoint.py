"""Whether two schemas exclude each other: no value is valid in both.

Sound and not complete: where it answers false, there may be no such value either. All keywords that
it does not read only narrow a schema.
"""

from specdecode_engine.grammar.schemas.numbers import is_number
from specdecode_engine.grammar.schemas.parts import (
    MOST_BRANCHES,
    Document,
    Part,
    Schema,
    branches,
    finite_values,
    identity,
    is_part,
    named_parts,
    strings,
    types_of,
)
from specdecode_engine.grammar.schemas.texts.matching import have_other_texts

_DEPTH = 6


def exclude(
    one: Schema, other: Schema, document: Document, within: Part, depth: int = _DEPTH
) -> bool:
    """Return whether no value that is valid in `within` is valid in both schemas."""
    document.comparisons -= 1
    one, other = document.resolve(one), document.resolve(other)
    if one is False or other is False:
        return True
    if not is_part(one) or not is_part(other) or depth == 0 or document.comparisons < 0:
        return False
    return (
        not _common_types(one, other, within)
        or _have_other_values(one, other)
        or _have_other_numbers(one, other, within)
        or (_common_types(one, other, within) == {"string"} and have_other_texts(one, other))
        or _have_other_properties(one, other, document, within, depth)
        or _branches_exclude(one, other, document, within, depth)
        or _branches_exclude(other, one, document, within, depth)
    )


def _common_types(one: Part, other: Part, within: Part) -> frozenset[str]:
    return types_of(one) & types_of(other) & types_of(within)


def _have_other_values(one: Part, other: Part) -> bool:
    mine, theirs = finite_values(one), finite_values(other)
    if mine is None or theirs is None:
        return False
    return not {identity(value) for value in mine} & {identity(value) for value in theirs}


def _have_other_numbers(one: Part, other: Part, within: Part) -> bool:
    if not _common_types(one, other, within) <= {"integer", "fraction"}:
        return False
    return _is_below(one, other) or _is_below(other, one)


def _is_below(one: Part, other: Part) -> bool:
    """Whether the largest number of one schema is less than the smallest of the other."""
    for high, is_open in (("maximum", False), ("exclusiveMaximum", True)):
        for low, is_open_too in (("minimum", False), ("exclusiveMinimum", True)):
            top, bottom = one.get(high), other.get(low)
            if not is_number(top) or not is_number(bottom):
                continue
            if top < bottom or (top == bottom and (is_open or is_open_too)):
                return True
    return False


def _have_other_properties(
    one: Part, other: Part, document: Document, within: Part, depth: int
) -> bool:
    """Whether an object would need a property whose values exclude each other."""
    if _common_types(one, other, within) != {"object"}:
        return False
    needed = {name for part in (one, other, within) for name in strings(part.get("required")) or ()}
    if len(needed) > MOST_BRANCHES:
        return False
    return any(
        exclude(_property(one, name), _property(other, name), document, {}, depth - 1)
        for name in needed
    )


def _property(part: Part, name: str) -> Schema:
    """Return a schema that all values of a property match."""
    properties = named_parts(part, "properties")
    if name in properties:
        return properties[name]
    return True if "patternProperties" in part else part.get("additionalProperties", True)


def _branches_exclude(one: Part, other: Part, document: Document, within: Part, depth: int) -> bool:
    """Whether all branches of `anyOf` or `oneOf`, or one of `allOf`, exclude the other schema."""
    for key in ("anyOf", "oneOf"):
        alternatives = branches(one, key)
        if 0 < len(alternatives) <= MOST_BRANCHES and all(
            exclude(each, other, document, within, depth - 1) for each in alternatives
        ):
            return True
    members = branches(one, "allOf")[:MOST_BRANCHES]
    return any(exclude(each, other, document, within, depth - 1) for each in members)
