"""Numbers of schemas near the limits of floats and of 64 bits: enforced exactly, or refused."""

import json
import random
from typing import Any

import numpy as np
import pytest

from specdecode_engine.grammar.compiler import GrammarCompiler, TokenBytes
from specdecode_engine.grammar.schemas.numbers import WIDEST_BOUND, narrowed, unusable_number
from specdecode_engine.grammar.source import GrammarKind, GrammarRefused, GrammarSource

EOS = 256
CORNERS = (2**52, 2**53, 2**54, 10**15, 10**16, 10**17, 10**18, 2**60, 2**62, 2**63, 2**64, 10**19)
LOWER, UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


@pytest.fixture(scope="module")
def compiler():
    spellings = [bytes([byte]) for byte in range(256)] + [b""]
    return GrammarCompiler(TokenBytes(spellings, frozenset({EOS}), frozenset({EOS})))


def accepts(compiler, schema, value):
    """Whether the grammar of a schema admits the digits of a value and then the end."""
    source = GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    matcher = compiler.compile(source).follow(())
    words = np.zeros(compiler.num_words, dtype=np.int32)
    for token in (*str(value).encode(), EOS):
        matcher.fill(words)
        if not words[token // 32] >> (token % 32) & 1:
            return False
        if token != EOS:
            matcher.advance(token)
    return True


def near(rng):
    """An integer next to a corner, of either sign."""
    return rng.choice((1, -1)) * (rng.choice(CORNERS) + rng.randrange(-3, 4))


def holds(schema, value):
    limits = {
        "minimum": lambda bound: value >= bound,
        "exclusiveMinimum": lambda bound: value > bound,
        "maximum": lambda bound: value <= bound,
        "exclusiveMaximum": lambda bound: value < bound,
    }
    return all(limits[key](bound) for key, bound in schema.items() if key in limits)


def test_bounds_of_integers_are_exact_or_refused_by_name(compiler):
    rng, checked = random.Random(), 0
    for _ in range(300):
        bounds = {rng.choice((*LOWER, *UPPER)): near(rng)}
        schema = {"type": "integer", **bounds}
        reason = unusable_number(schema)
        if reason is not None:
            assert all(f"{key} is {value}" in reason for key, value in bounds.items())
            continue
        for value in {near(rng), *bounds.values(), *(each + 1 for each in bounds.values())}:
            if abs(value) <= WIDEST_BOUND:
                assert accepts(compiler, schema, value) == holds(schema, value), (schema, value)
                checked += 1
    assert checked > 200


@pytest.mark.parametrize("keyword", ["const", "enum"])
def test_constants_are_that_number_or_refused_by_name(compiler, keyword):
    rng, kept = random.Random(), 0
    for _ in range(100):
        value = near(rng)
        schema = {keyword: value if keyword == "const" else [7, value]}
        reason = unusable_number(schema)
        if reason is not None:
            assert f"{keyword}" in reason
            assert str(value) in reason
            continue
        assert accepts(compiler, schema, value)
        assert not accepts(compiler, schema, value + 1)
        kept += 1
    assert kept > 10


@pytest.mark.parametrize(
    ("schema", "place", "words"),
    [
        ({"properties": {"a": {"const": 2**53 + 1}}}, "$.properties.a", "const has"),
        ({"properties": {"a": {"enum": [{"b": [2**53 + 1]}]}}}, "$.properties.a", "enum has"),
        ({"items": {"multipleOf": 2**53 + 1}}, "$.items", "multipleOf is 9007199254740993"),
        ({"$defs": {"x": {"maximum": -(2**64) + 1}}}, "$.$defs.x", "maximum is -1844674407370955"),
        ({"anyOf": [{}, {"maxLength": 2**64}]}, "$.anyOf[1]", "maxLength is 18446744073709551616"),
        ({"type": "integer", "exclusiveMinimum": 2**53}, "$", "use minimum"),
        ({"type": "integer", "minimum": 2**63}, "$", "below 10^18"),
        ({"type": "number", "minimum": 3.4e38, "maximum": -3.4e38}, "$", "; maximum is -3.4e+38"),
    ],
)
def test_a_number_is_refused_with_place_value_and_remedy(compiler, schema, place, words):
    for source in (
        GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(schema)),
        GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(schema), is_strict=False),
        GrammarSource(GrammarKind.EBNF, f"start: %json {json.dumps(schema)}"),
    ):
        with pytest.raises(GrammarRefused) as refused:
            compiler.compile(source)
        assert str(refused.value).startswith(f"at {place}: ")
        assert words in str(refused.value)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "maximum": 2**63 - 1},
        {"type": "integer", "minimum": -(2**63), "exclusiveMaximum": 2**63},
        {"type": "number", "minimum": -3.4028234663852886e38, "maximum": 3.4028234663852886e38},
        {"type": ["integer", "null"], "maximum": 2**64},
        {"type": "integer", "minimum": -(2**53), "maximum": 2**53},
        {"default": 2**70, "examples": [2**70], "type": "string"},
        {"properties": {"const": {"type": "string"}, "minimum": {"type": "string"}}},
    ],
)
def test_numbers_that_change_nothing_are_accepted(compiler, schema):
    assert unusable_number(schema) is None
    compiler.compile(GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(schema)))


def test_bounds_beyond_64_bits_are_narrowed_and_nothing_else_changes(compiler):
    wide: dict[str, Any] = {"type": "number", "exclusiveMinimum": -3.4e38, "maximum": 10**30}
    schema: dict[str, Any] = {"properties": {"a": wide}, "default": {"maximum": 10**30}}
    found: dict[str, Any] = narrowed(schema)
    assert found["default"] == schema["default"]
    assert found["properties"]["a"] == {
        "type": "number", "minimum": -WIDEST_BOUND, "maximum": WIDEST_BOUND,
    }  # fmt: skip
    assert schema["properties"]["a"] == wide
    both = {"type": "integer", "minimum": 5, "exclusiveMinimum": -(10**30)}
    assert narrowed(both) == {"type": "integer", "minimum": 5}
    assert accepts(compiler, wide, "-12.5")
    assert accepts(compiler, wide, WIDEST_BOUND)
    assert not accepts(compiler, wide, '"a"')


def test_a_fault_next_to_a_large_number_is_found(compiler):
    schema = {"default": 2**70, "properties": {"a": {"type": "strin"}}}
    with pytest.raises(GrammarRefused, match=r"at \$\.properties\.a"):
        compiler.compile(GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
