"""Numbers of a JSON Schema that the grammar library changes or cannot take, with their paths.

llguidance 1.9.1 reads every number as a float of 64 bits: an integer beyond 2^53 may become its
neighbour, and a constrained answer would contain that one. Bounds with 19 digits it refuses in
words of its own, without their keyword. Bounds that admit more than 64 bits are narrowed to these:
whatever a narrowed schema admits, the schema admits too.
"""

import json
from collections.abc import Iterator
from typing import TypeGuard

from specdecode_engine.grammar.json_schema import JsonSchema, schema_parts

BEYOND_INTEGERS = 2**63
"""Limit of integers."""
BEYOND_NARROW_BOUNDS = 10**18
"""Limit of lower bounds above 0 and of upper bounds below 0."""
BEYOND_MULTIPLES = BEYOND_EXCLUSIVE = 2**53
"""Next to an exclusive bound is an integer that a float of 64 bits may not hold."""
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minContains", "maxContains",
)  # fmt: skip


WIDEST_BOUND = 2**63 - 2**10
"""The largest 64-bit float below 2^63."""


def narrowed(schema: JsonSchema) -> dict[str, object]:
    """Return a copy of a schema whose bounds beyond 64 bits are those of 64 bits."""
    copied: dict[str, object] = json.loads(json.dumps(schema))
    pending: list[JsonSchema] = [copied]
    while pending:
        part = pending.pop()
        pending += (child for _, child in schema_parts(part, is_root=True))
        assert isinstance(part, dict)
        for keys, side in ((_LOWER, -1), (_UPPER, 1)):
            for key in keys:
                value = part.get(key)
                if is_number(value) and value * side > WIDEST_BOUND:
                    del part[key]
                    part.setdefault(keys[0], side * WIDEST_BOUND)  # the other may be narrower
    return copied


def unusable_number(schema: JsonSchema) -> str | None:
    """Return the place of the first schema with such numbers, and each of them; None if none."""
    pending: list[tuple[str, JsonSchema]] = [("$", schema)]
    while pending:
        place, part = pending.pop()
        if faults := [*_faults(part)]:
            return f"at {place}: {'; '.join(faults)}"
        pending += ((place + step, child) for step, child in schema_parts(part, is_root=True))
    return None


def _faults(schema: JsonSchema) -> Iterator[str]:
    for keys, side in ((_LOWER, -1), (_UPPER, 1)):
        for key in keys:
            yield from _bound(key, schema.get(key), side)
    multiple = schema.get("multipleOf")
    if is_number(multiple) and multiple >= BEYOND_MULTIPLES:
        yield f"multipleOf is {multiple}; it has to be below 2^53; remove it"
    for key in COUNTS:
        count = schema.get(key)
        if is_number(count) and count >= BEYOND_INTEGERS:
            yield f"{key} is {count}; it has to be below 2^63; remove it"
    for key in ("const", "enum"):
        for value in _integers(schema.get(key)):
            if abs(value) >= BEYOND_INTEGERS:
                yield f"{key} has {value}; integers lie between -2^63 and 2^63; use a string"
            elif int(float(value)) != value:
                yield f"{key} has {_inexact(value)}; use a string, or a pattern of digits"


def _bound(key: str, value: object, side: int) -> Iterator[str]:
    """Yield what is wrong with a lower (-1) or upper (1) bound."""
    if not is_number(value) or value * side > WIDEST_BOUND:  # which is narrowed
        return
    if value * side <= -BEYOND_NARROW_BOUNDS:
        limit = "below 10^18" if side < 0 else "above -10^18"
        yield f"{key} is {value}; it has to be {limit}; remove it"
    elif key.startswith("exclusive") and abs(value) >= BEYOND_EXCLUSIVE:
        yield f"{key} is {value}; it has to lie between -2^53 and 2^53; use {key[9:].lower()}"
    elif int(float(value)) != int(value):
        yield f"{key} is {_inexact(value)}; use that one, or its other neighbour"


def _inexact(value: int | float) -> str:
    return f"{value}, and numbers of a schema are 64-bit floats: the nearest is {int(float(value))}"


def is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _integers(value: object) -> Iterator[int]:
    """Yield the integers of a JSON value, at any depth."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, int) and not isinstance(each, bool):
            yield each
        elif isinstance(each, dict):
            pending += each.values()
        elif isinstance(each, list):
            pending += each
