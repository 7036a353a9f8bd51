"""A rewritten schema admits the values of the schema: random schemas, judged by jsonschema."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from specdecode_engine.grammar.schemas import expressible
from specdecode_engine.grammar.schemas.parts import Document, branches
from specdecode_engine.grammar.schemas.rewrite import apply_to_parts

NAMES = ("a", "b", "c")
VALUES: tuple[Any, ...] = (None, True, False, 0, 1, 1.0, 2.5, "", "x", "xy", "é-", [], ["x"], {})
TYPES = ("null", "boolean", "object", "array", "string", "integer", "number")
LIMITS = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength",
    "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
NUM_SCHEMAS = 1000
NUM_VALUES = 40


def value(rng: random.Random, depth: int = 2) -> Any:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(VALUES)
    if rng.random() < 0.2:
        return [value(rng, 0) for _ in range(rng.randrange(4))]
    return {name: value(rng, depth - 1) for name in NAMES if rng.random() < 0.6}


def leaf(rng: random.Random) -> Any:
    texts = rng.sample(["x", "xy", "", "é-"], rng.randrange(1, 4))
    return rng.choice(
        [
            True, {}, {"type": rng.choice(TYPES)}, {"type": rng.sample(TYPES, 2)},
            {"const": rng.choice(VALUES)}, {"enum": rng.sample(VALUES, 2)}, {"enum": texts},
            {"type": "string", "enum": texts}, {"type": "boolean"},
            {"type": "integer", "minimum": 1}, {"type": "number", "exclusiveMaximum": 1},
            {rng.choice(LIMITS): rng.choice([0, 1, 2, 2.0])},
        ]
    )  # fmt: skip


def names(rng: random.Random) -> list[str]:
    return rng.sample(NAMES, rng.randrange(1, 3))


def schema(rng: random.Random, depth: int = 2) -> Any:
    if depth == 0:
        return leaf(rng)
    inner = depth - 1
    drawn: dict[str, Any] = {}
    if rng.random() < 0.6:
        drawn["type"] = "object"
    if rng.random() < 0.7:
        drawn["properties"] = {name: schema(rng, inner) for name in names(rng)}
    if rng.random() < 0.3:
        drawn["required"] = names(rng)
    if rng.random() < 0.2:
        drawn["additionalProperties"] = rng.choice([False, leaf(rng)])
    for _ in range(rng.randrange(1, 3)):
        drawn |= rng.choice(KEYWORDS)(rng, inner)
    return drawn


def if_then(rng: random.Random, depth: int) -> dict[str, Any]:
    both = {"if": schema(rng, depth), "then": schema(rng, depth)}
    return both if rng.random() < 0.5 else both | {"else": schema(rng, depth)}


KEYWORDS: list[Callable[[random.Random, int], dict[str, Any]]] = [
    lambda rng, depth: {"oneOf": [schema(rng, depth) for _ in range(rng.randrange(1, 4))]},
    lambda rng, _: {"oneOf": [{"required": names(rng)} for _ in range(2)]},
    lambda rng, depth: {"anyOf": [schema(rng, depth) for _ in range(2)]},
    lambda rng, depth: {"not": schema(rng, depth)},
    if_then,
    lambda rng, _: {"dependentRequired": {rng.choice(NAMES): names(rng)}},
    lambda rng, depth: {"dependentSchemas": {rng.choice(NAMES): schema(rng, depth)}},
    lambda rng, _: {"propertyNames": {"enum": names(rng)}},
    lambda rng, _: {"propertyNames": rng.choice([{"type": "string"}, {"maxLength": 1}, True])},
    lambda rng, _: {"propertyNames": False},
    lambda rng, _: {"unevaluatedProperties": rng.choice([True, False, leaf(rng)])},
    lambda rng, depth: {
        "unevaluatedProperties": rng.choice([False, leaf(rng)]),
        "allOf": [schema(rng, depth), {"properties": {name: leaf(rng) for name in names(rng)}}],
    },
    lambda rng, _: {"minProperties": rng.randrange(3), "maxProperties": rng.randrange(4)},
    lambda rng, _: {
        rng.choice(["minProperties", "maxProperties"]): rng.randrange(3),
        "properties": {name: leaf(rng) for name in NAMES},
    },
    lambda rng, _: {"not": {"pattern": rng.choice(["x", "[^x]", "^[xy]+$", "^[^x]*$", r"[\s.]"])}},
    lambda rng, _: {
        "patternProperties": {rng.choice([".+", ".*", "^a"]): leaf(rng)},
        "propertyNames": rng.choice([{"enum": names(rng)}, {"pattern": "^a"}]),
    },
    lambda rng, _: {"unevaluatedItems": rng.choice([True, False, leaf(rng)])},
    lambda rng, _: {
        "unevaluatedItems": leaf(rng),
        "prefixItems": [leaf(rng)],
        "contains": leaf(rng),
        "minContains": rng.choice([0, 1]),
    },
    lambda rng, _: {rng.choice(["minContains", "maxContains"]): 0},
    lambda rng, _: {"contains": leaf(rng), "minContains": rng.choice([0, 0.0, 1])},
    lambda rng, _: {
        "type": "array",
        "uniqueItems": True,
        "items": {"enum": rng.sample(VALUES[:10], rng.randrange(4))},
        **({"minItems": 1.0} if rng.random() < 0.5 else {}),
    },
]


def difference(before: Any, after: Any, rng: random.Random) -> Any:
    """Return a value that one schema admits and the other does not; None if none was found."""
    old, new = Draft202012Validator(before), Draft202012Validator(after)
    for _ in range(NUM_VALUES):
        drawn = value(rng)
        if old.is_valid(drawn) != new.is_valid(drawn):
            return drawn, before, after
    return None


@pytest.mark.parametrize("part", range(4))
def test_random_schemas_admit_the_same_values(part: int) -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    rewritten = 0
    for _ in range(NUM_SCHEMAS // 4):
        drawn = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema(rng)
        after = expressible(drawn, is_strict=True)
        if "unevaluated" in json.dumps(after):
            continue  # refused; other rewritings change what would be evaluated
        assert difference(drawn, after, rng) is None, seed
        rewritten += after != drawn
    assert rewritten > NUM_SCHEMAS // 16, seed


def test_a_rewriting_that_lets_branches_overlap_is_found() -> None:
    def as_any_of(part: dict[str, Any], document: Document) -> None:
        del document
        if found := branches(part, "oneOf"):
            del part["oneOf"]
            part["anyOf"] = found

    rng = random.Random(7)
    found = 0
    for _ in range(200):
        drawn = schema(rng)
        after = json.loads(json.dumps(drawn))
        apply_to_parts(after, [as_any_of])
        found += difference(drawn, after, rng) is not None
    assert found > 5
