"""A schema for exactly the values that another one refuses, as far as keywords can express that.

A schema is a conjunction: its negation is an `anyOf` of the negations of its keywords.
"""

from collections.abc import Iterator
from string import punctuation

from specdecode_engine.grammar.schemas.numbers import is_number
from specdecode_engine.grammar.schemas.parts import (
    ANNOTATIONS,
    MOST_BRANCHES,
    TYPES,
    Document,
    Part,
    Schema,
    branches,
    expand_types,
    finite_values,
    identity,
    is_part,
    named_parts,
    names_of_types,
    strings,
    types_of,
)
from specdecode_engine.grammar.schemas.texts.complements import complement_of

_DEPTH = 6
_MOST_CHARS = 512
_BOUNDS = {
    "minimum": "exclusiveMaximum",
    "maximum": "exclusiveMinimum",
    "exclusiveMinimum": "maximum",
    "exclusiveMaximum": "minimum",
}
_COUNTS = {
    "minLength": ("string", "maxLength", -1),
    "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1),
    "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}
"""The type that a limit applies to, the opposite limit, and the step to it."""
_READ = ANNOTATIONS | {
    "type", "required", "properties", "const", "enum", "pattern", "allOf", "anyOf", "not",
    *_BOUNDS, *_COUNTS,
}  # fmt: skip


class NotExpressible(Exception):
    """No keywords of the library express the negation."""


def negation(schema: Schema, document: Document, within: Part, depth: int = _DEPTH) -> Schema:
    """Return a schema for the values of `within` that a schema refuses.

    Raises:
        NotExpressible: the negation has no form that is known to be equal.
    """
    if isinstance(schema, bool):
        return not schema
    schema = document.resolve(schema)
    if isinstance(schema, bool):
        return not schema
    if not is_part(schema) or depth == 0 or schema.keys() - _READ:
        raise NotExpressible
    alternatives = [*_alternatives(schema, document, within, depth)]
    if len(alternatives) > MOST_BRANCHES:
        raise NotExpressible
    return any_of(alternatives)


def any_of(alternatives: list[Schema]) -> Schema:
    """Return `anyOf` of schemas, without those that change nothing."""
    if any(each is True for each in alternatives):
        return True
    left = [each for each in alternatives if each is not False]
    if len(left) > 1:
        return {"anyOf": left}
    return left[0] if left else False


def all_of(members: list[Schema]) -> Schema:
    """Return `allOf` of schemas, without those that change nothing."""
    if any(each is False for each in members):
        return False
    left = [each for each in members if each is not True]
    if len(left) > 1:
        return {"allOf": left}
    return left[0] if left else True


def _alternatives(part: Part, document: Document, within: Part, depth: int) -> Iterator[Schema]:
    """Yield the negation of each keyword."""
    if "type" in part:
        yield _other_types(part)
    if (values := finite_values(part)) is not None:
        yield _other_values(values, within)
    if "required" in part:
        names = strings(part["required"])
        if names is None:
            raise NotExpressible
        yield from ({"type": "object", "properties": {name: False}} for name in names)
    known = named_parts(within, "properties")
    for name, value in named_parts(part, "properties").items():
        here = document.resolve(known.get(name, {}))
        refused = negation(value, document, here if is_part(here) else {}, depth - 1)
        if refused is not False:
            yield {"type": "object", "required": [name], "properties": {name: refused}}
    for each in branches(part, "allOf"):
        yield negation(each, document, within, depth - 1)
    if "anyOf" in part:
        negated = [negation(each, document, within, depth - 1) for each in branches(part, "anyOf")]
        yield all_of(negated)
    if "not" in part:
        yield part["not"]
    if "pattern" in part:
        yield {"type": "string", "pattern": _other_pattern(part["pattern"])}
    yield from _other_numbers(part)


def _other_numbers(part: Part) -> Iterator[Schema]:
    """Yield the negation of each limit."""
    for key in part.keys() & _BOUNDS.keys():
        value = part[key]
        if not is_number(value):
            raise NotExpressible
        yield {"type": "number", _BOUNDS[key]: value}
    for key in part.keys() & _COUNTS.keys():
        value = part[key]
        if not is_number(value) or value != int(value):
            raise NotExpressible
        kind, opposite, step = _COUNTS[key]
        limit = int(value) + step
        yield {"type": kind, opposite: limit} if limit >= 0 else False


def _other_pattern(pattern: object) -> str:
    other = complement_of(pattern) if isinstance(pattern, str) else None
    if other is None:
        raise NotExpressible
    return other


def _other_types(part: Part) -> Schema:
    declared = part["type"]
    listed = [declared] if isinstance(declared, str) else strings(declared)
    if listed is None:
        raise NotExpressible
    names = names_of_types(TYPES - expand_types(listed))
    if names is None:
        raise NotExpressible
    return {"type": names} if names else False


def _other_values(values: list[object], within: Part) -> Schema:
    """Return a schema for the other values of `within`: those that it lists, or all strings."""
    excluded = {identity(value) for value in values}
    types = types_of(within)
    domain = finite_values(within)
    if domain is None and types == {"boolean"}:
        domain = [True, False]
    if domain is not None:
        left = [value for value in domain if identity(value) not in excluded]
        return {"enum": left} if left else False
    texts = [value for value in values if isinstance(value, str)]
    if len(texts) + values.count(None) < len(values):
        raise NotExpressible
    return _other_texts(texts, types - {"null"} if None in values else types)


def _other_texts(texts: list[str], types: frozenset[str]) -> Schema:
    if sum(map(len, texts)) > _MOST_CHARS:
        raise NotExpressible
    names = names_of_types(types - {"string"})
    if names is None:
        raise NotExpressible
    pattern = f"^{_complement(sorted(set(texts)))}$"
    others = {"type": "string", "pattern": pattern} if "string" in types else False
    return any_of([others, {"type": names} if names else False])


def _complement(texts: list[str]) -> str:
    """Return a regular expression for every text but these."""
    firsts = sorted({text[0] for text in texts if text})
    parts = [rf"[^{''.join(map(_escaped, firsts))}][\s\S]*"] if firsts else [r"[\s\S]+"]
    parts += [
        _escaped(first) + _complement([text[1:] for text in texts if text[:1] == first])
        for first in firsts
    ]
    return f"(?:{'|'.join(parts)}){'' if '' in texts else '?'}"


def _escaped(character: str) -> str:
    return f"\\{character}" if character in punctuation else character
