"""Grammars of rewritten schemas: what each keyword admits, and what is refused by name."""

import json
import random
import re
from typing import Any

import jsonschema_rs
import numpy as np
import pytest
from jsonschema import Draft202012Validator

from specdecode_engine.grammar.compiler import GrammarCompiler, TokenBytes
from specdecode_engine.grammar.schemas.texts.formats import FORMAT_PATTERNS
from specdecode_engine.grammar.schemas.texts.matching import literal_start, matches
from specdecode_engine.grammar.schemas.texts.patterns import without_nul
from specdecode_engine.grammar.source import GrammarKind, GrammarRefused, GrammarSource
from tests.engine.grammar.schemas.test_same_values import schema, value

EOS = 256
A, B = {"a": {"type": "integer"}}, {"b": {"type": "integer"}}
CAT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"const": "cat", "default": "cat", "type": "string"},
        "lives": {"type": "integer"},
        "friend": {"$ref": "#/$defs/Pet"},
    },
    "required": ["lives"],
}
DOG: dict[str, Any] = {
    "type": "object",
    "properties": {"kind": {"const": "dog", "default": "dog"}, "name": {"type": "string"}},
    "required": ["name"],
}
PET: dict[str, Any] = {
    "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/Cat"}},
    "oneOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}],
}
POINTERS: tuple[list[Any], list[Any]] = (
    ["", "/", "/a/b", "/~0~1", "/a b/é/0", "//"], ["a", "/~", "/~2", "/a/~", "#/a"],
)  # fmt: skip
REFERENCES: tuple[list[Any], list[Any]] = (
    [
        "", "a", "../a/b?c=d#e", "/", "/a//b", "//h", "//u:p@h:80/a", "//h:/", "?q", "#f", "a:b",
        "http://h/%20?x=/?#/?", "a/b:c", "urn:x:y", "./a:b", "mailto:a@b", "x:", "x:/", ";a=1",
    ],
    [
        "a b", "%", "%2", "%zz", "a#b#c", "\\", "/<a>", ":a", "1:b", "//h:x/", "a\nb", "é", "[",
        "//u@v@h",
    ],
)  # fmt: skip
PARTS_OF_REGEXES = [
    "[", "]", "(", ")", "(?:", "(?=", "{2}", "{1,3}", "{", "*", "+", "|", "^", "$", "a-c", "c-a",
    "\\d", "\\b", "\\", "&&",
]  # fmt: skip
CASES: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    (
        "discriminator of a recursive union",
        {"$defs": {"Cat": CAT, "Dog": DOG, "Pet": PET}, "$ref": "#/$defs/Pet"},
        [{"kind": "cat", "lives": 9}, {"kind": "dog", "name": "x"},
         {"kind": "cat", "lives": 9, "friend": {"kind": "dog", "name": "x"}}],
        [{"kind": "cat", "name": "x"}, {"lives": 9, "name": "x"}, {"name": "x"},
         {"kind": "cat", "lives": 9, "friend": {"name": "x"}}],
    ),
    (
        "oneOf of numbers and texts in ranges",
        {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 7},
                   {"type": "string"}]},
        [1, 9, "x"], [5, None],
    ),
    (
        "oneOf of required properties",
        {"type": "object", "properties": A | B, "additionalProperties": False,
         "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}],
    ),
    (
        "dependentRequired",
        {"type": "object", "properties": A | B, "dependentRequired": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 2}], [{"a": 1}],
    ),
    (
        "dependencies of both kinds",
        {"type": "object", "properties": A | B,
         "dependencies": {"a": ["b"], "b": {"properties": {"b": {"maximum": 5}}}}},
        [{}, {"a": 1, "b": 2}], [{"a": 1}, {"b": 6}],
    ),
    (
        "if, then and else",
        {"type": "object", "properties": {"kind": {"enum": ["x", "y"]}, **A},
         "required": ["kind"], "additionalProperties": False,
         "if": {"properties": {"kind": {"const": "x"}}}, "then": {"required": ["a"]},
         "else": {"properties": {"a": False}}},
        [{"kind": "x", "a": 1}, {"kind": "y"}], [{"kind": "x"}, {"kind": "y", "a": 1}],
    ),
    (
        "not of texts",
        {"type": "string", "not": {"enum": ["", "on", "off", "a\"b"]}},
        ["o", "of", "offs", "x", "a\nb", "é"], ["", "on", "off", "a\"b", 1],
    ),
    ("not of types", {"not": {"type": ["string", "null"]}}, [1, 2.5, True, []], ["x", None]),
    (
        "not of required",
        {"type": "object", "properties": A | B, "not": {"required": ["a", "b"]}},
        [{}, {"a": 1}, {"b": 1}], [{"a": 1, "b": 1}],
    ),
    (
        "propertyNames of a list",
        {"type": "object", "additionalProperties": {"type": "integer"},
         "propertyNames": {"enum": ["r", "g"]}},
        [{}, {"g": 1}, {"g": 1, "r": 2}], [{"b": 1}, {"r": "x"}],
    ),
    (
        "propertyNames of a pattern and of a length",
        {"type": "object", "properties": {
            "p": {"type": "object", "propertyNames": {"pattern": "^x"}},
            "q": {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 2}}}},
        [{"p": {"xa": 1}}, {"q": {"éa": 1}}], [{"p": {"a": 1}}, {"q": {"": 1}}, {"q": {"abc": 1}}],
    ),
    (
        "uniqueItems of a list of values",
        {"type": "array", "items": {"enum": ["r", "g", "b"]}, "uniqueItems": True, "minItems": 1.0},
        [["r"], ["b", "r"], ["g", "b", "r"]], [[], ["r", "r"], ["x"]],
    ),
    ("uniqueItems of one item", {"type": "array", "maxItems": 1, "uniqueItems": True},
     [[], [1]], [[1, 2]]),
    (
        "a pattern with negated classes",
        {"type": "object", "properties": {
            "p": {"type": "string", "pattern": "^[^\"\\\\]*[^-\\]]?$"}},
         "patternProperties": {"^[^\"p]$": {"type": "integer"}}, "additionalProperties": False},
        [{"p": "a\n\t"}, {"p": "é\x01"}, {"q": 1}],
        [{"p": "\"a"}, {"p": "a\\b"}, {"\"": 1}, {"qq": 1}],
    ),
    (
        "a format next to a pattern, and one for readers",
        {"type": "object", "properties": {
            "t": {"type": "string", "format": "e164", "pattern": "^\\+[1-9]\\d{2}$"},
            "u": {"type": "string", "format": "byte"}}},
        [{"t": "+123"}, {"u": "x"}], [{"t": "0123"}, {"u": 1}],
    ),
    (
        "a format that JSON Schema does not define",
        {"type": "string", "format": "html-selector"}, ["#a", ""], [1],
    ),
    ("the format json-pointer", {"type": "string", "format": "json-pointer"}, *POINTERS),
    (
        "the format relative-json-pointer",
        {"type": "string", "format": "relative-json-pointer"},
        ["0", "1/a", "12#", "0/~0~1/"], ["", "/a", "01", "-1", "0a", "1#/a", "0/~2"],
    ),
    ("the format uri-reference", {"type": "string", "format": "uri-reference"}, *REFERENCES),
    (
        "a type next to a reference",
        {"type": "object", "$defs": {"t": {"type": "object", "properties": {
            "n": {"type": "object", "title": "T", "$ref": "#/$defs/t"},
            "m": {"type": ["object", "null"], "anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]},
            "k": {"type": "integer"}}, "additionalProperties": False}},
         "properties": {"a": {"type": "object", "$ref": "#/$defs/t"}}},
        [{"a": {"n": {"k": 1}}}, {"a": {"m": None}}, {"a": {"m": {"n": {}}}}],
        [{"a": 1}, {"a": {"n": []}}, {"a": {"m": 1}}, {"a": {"n": {"x": 1}}}],
    ),
    (
        "a property that a pattern describes in the same way",
        {"$defs": {"t": {"type": "object", "patternProperties": {"^[a-z]*$": {"$ref": "#/$defs/t"}},
                         "properties": {"by": {"title": "By", "$ref": "#/$defs/t"},
                                        "B": {"type": "integer"}},
                         "required": ["by"], "additionalProperties": False}},
         "type": "array", "items": {"anyOf": [{"$ref": "#/$defs/t"}, {"type": "null"}]}},
        [[None]], [[{}], [{"B": 1}], [{"by": 1}], [1]],
    ),
    (
        "oneOf of texts with other beginnings, values and lengths",
        {"type": "string", "oneOf": [
            {"pattern": "^https?://.+$"}, {"pattern": "^\\./"}, {"enum": ["all", "none"]}]},
        ["http://a", "./b", "all"], ["a", "https:/a", ".", "some"],
    ),
    (
        "oneOf of lengths",
        {"oneOf": [{"type": "string", "maxLength": 1}, {"type": "string", "minLength": 3}]},
        ["a", "abc"], ["ab", 1],
    ),
    (
        "unevaluatedItems next to prefixItems of other schemas",
        {"$defs": {"two": {"prefixItems": [True, {"type": "integer"}]}}, "type": "array",
         "prefixItems": [{"type": "string"}], "allOf": [{"$ref": "#/$defs/two"}],
         "unevaluatedItems": False},
        [[], ["a"], ["a", 1]], [[1], ["a", "b"], ["a", 1, 2]],
    ),
    (
        "unevaluatedItems next to items of another schema",
        {"type": "array", "allOf": [{"items": {"type": "integer"}}], "unevaluatedItems": False},
        [[], [1, 2]], [["a"]],
    ),
    (
        "minProperties that required implies",
        {"type": "object", "required": ["a", "b"], "minProperties": 2},
        [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}], [{"a": 1}],
    ),
    (
        "minProperties of optional properties",
        {"type": "object", "properties": {"p": {"type": "object", "properties": A | B,
                                                "minProperties": 1}}},
        [{"p": {"a": 1}}, {"p": {"b": 1, "c": 2}}, {"p": {"c": 2}}], [{"p": {}}, {"p": {"a": "x"}}],
    ),
    (
        "one of many optional properties",
        {"type": "object", "properties": {name: {"type": "integer"} for name in "abcdefghijkl"},
         "minProperties": 1, "maxProperties": 1},
        [{"a": 1}, {"l": 1}, {"x": 1}], [{}, {"a": 1, "l": 1}, {"a": 1, "x": 1}, {"l": "x"}],
    ),
    (
        "two to three properties of a closed object",
        {"type": "object", "properties": {name: {"type": "integer"} for name in "abcd"},
         "minProperties": 2, "maxProperties": 3, "additionalProperties": False},
        [{"a": 1, "b": 1}, {"b": 1, "c": 1, "d": 1}],
        [{}, {"a": 1}, {"a": 1, "b": 1, "c": 1, "d": 1}, {"a": 1, "x": 1}],
    ),
    (
        "maxProperties that a closed object cannot exceed",
        {"type": "object", "properties": A | B, "additionalProperties": False, "maxProperties": 2},
        [{}, {"a": 1, "b": 2}], [{"c": 1}],
    ),
    (
        "not of a pattern of one class",
        {"type": "object", "properties": {
            "all": {"type": "string", "not": {"pattern": "^[\\.\\s]+$"}},
            "any": {"type": "string", "not": {"pattern": "(\\$)"}},
            "others": {"type": "string", "not": {"pattern": "[^ab]"}}}},
        [{"all": ""}, {"all": ".a"}, {"any": "ab"}, {"others": ""}, {"others": "abba"}],
        [{"all": "."}, {"all": ". \ufeff"}, {"any": "a$"}, {"others": "abc"}],
    ),
    (
        "propertyNames next to a pattern of all names",
        {"type": "object", "propertyNames": {"pattern": "^x"},
         "patternProperties": {"^x": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"xa": 1}], [{"a": 1}, {"xa": "b"}],
    ),
    ("dependencies of nothing", {"type": "object", "dependencies": {}}, [{}, {"a": 1}], [1]),
    ("a format of another draft", {"$schema": "http://json-schema.org/draft-04/schema#",
                                   "type": "string", "format": "color"}, ["red", ""], [1]),
    (
        "a format next to a pattern that both apply",
        {"type": "object", "properties": {
            "i": {"type": "string", "format": "iri-reference", "pattern": "^a"},
            "r": {"type": "string", "format": "regex", "pattern": "^a"}}},
        [{"i": "a/b"}, {"r": "a+"}], [{"i": "a b"}, {"i": "b"}, {"r": "a("}, {"r": "b"}],
    ),
    ("the format iri", {"type": "string", "format": "iri"},
     ["http://\u00e4.de/\u00f6?q=\u00fc", "urn:a:b"], ["x", "", "http://a b"]),
    (
        "the format regex",
        {"type": "string", "format": "regex"},
        ["", "^[^\\\\/]+\\.(js|ts)$", "\\d{2,5}", "(?:a|b(c|(d)))*?", "(?=.*x)y", "[\\w.-]",
         "\\bx\\b"],
        ["(", "[^]", "[z-a]", "\\d{2,1}", "a**", "[", "x{", "\\b*", "(?!a)*", "\\", 1],
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    spellings = [bytes([byte]) for byte in range(256)] + [b""]
    return GrammarCompiler(TokenBytes(spellings, frozenset({EOS}), frozenset({EOS})))


def source(wanted: Any, *, is_strict: bool = True) -> GrammarSource:
    return GrammarSource(GrammarKind.JSON_SCHEMA, json.dumps(wanted), is_strict)


def admits(compiler: GrammarCompiler, grammar: Any, answer: Any) -> bool:
    matcher = grammar.follow(())
    words = np.zeros(compiler.num_words, dtype=np.int32)
    for token in (*json.dumps(answer, ensure_ascii=False).encode(), EOS):
        matcher.fill(words)
        if not words[token // 32] >> (token % 32) & 1:
            return False
        if token != EOS:
            matcher.advance(token)
    return True


@pytest.mark.parametrize(
    ("wanted", "valid", "invalid"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_a_rewritten_keyword_admits_what_it_says(
    compiler: GrammarCompiler, wanted: dict[str, Any], valid: list[Any], invalid: list[Any]
) -> None:
    grammar = compiler.compile(source(wanted))
    assert [each for each in valid if not admits(compiler, grammar, each)] == []
    assert [each for each in invalid if admits(compiler, grammar, each)] == []


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf is not supported"),
        ({"type": "number", "not": {"multipleOf": 3}}, '"not"'),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, '"uniqueItems"'),
        ({"type": "object", "propertyNames": {"format": "email"}}, '"propertyNames"'),
        (
            {
                "type": "object",
                "if": {"propertyNames": {"minLength": 2}},
                "then": {"required": ["a"]},
            },
            '"if"',
        ),
        ({"type": "string", "format": "ipv4network"}, "known are date, date-time"),
        ({"type": "string", "format": "uri-template"}, "known are date, date-time"),
        (
            {
                "type": "object",
                "properties": {name: {} for name in "abcdefg"},
                "minProperties": 2,
            },
            "min/maxProperties",
        ),
        (
            {
                "type": "object",
                "properties": {
                    name: {
                        "type": "object",
                        "properties": {one: {} for one in "abcdef"},
                        "minProperties": 3,
                    }
                    for name in "abc"
                },
            },
            "min/maxProperties",
        ),
        ({"type": "string", "not": {"pattern": "^ab$"}}, '"not"'),
        *(
            ({"type": "string", "not": {"pattern": pattern}}, '"not"')
            for pattern in ("[a&&b]", "^[a&&b]+$", "[a~~b]", "[+--b]")
        ),
        (
            {"type": "array", "items": [{"type": "integer"}], "unevaluatedItems": False},
            "unevaluatedItems",
        ),
        (
            {
                "type": "array",
                "allOf": [{"anyOf": [{"prefixItems": [True]}, True]}],
                "unevaluatedItems": False,
            },
            "unevaluatedItems",
        ),
        ({"oneOf": [{"type": "string", "pattern": p} for p in ("^ab?", "^a")]}, "oneOf is not"),
        ({"oneOf": [{"type": "string", "pattern": p} for p in ("^a|b", "^c")]}, "oneOf is not"),
    ],
)
def test_what_is_not_proven_equal_is_refused_by_name(
    compiler: GrammarCompiler, wanted: dict[str, Any], words: str
) -> None:
    with pytest.raises(GrammarRefused) as caught:
        compiler.compile(source({"type": "object", "properties": {"p": wanted}}))
    assert words in str(caught.value), caught.value
    assert "$.properties.p" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "rewritten"),
    [
        ('[^"]', r'[^\x00"]'),
        (r"\[^a]", r"\[^a]"),
        (r"\\[^a]", r"\\[^\x00a]"),
        ("[^]a]", r"[^]\x00a]"),
        ("[^-a]", r"[^\x00\-a]"),
        (r"[^\x00a][b]", r"[^\x00a][b]"),
    ],
)
def test_negated_classes_leave_out_one_more_character(pattern: str, rewritten: str) -> None:
    assert without_nul(pattern) == rewritten
    assert without_nul(rewritten) == rewritten


@pytest.mark.parametrize("pattern", ["^(?=.{1,20}$)[a-z]+$", "(?<!a)b", "(a)\\1"])
def test_without_strict_a_pattern_beyond_the_library_is_ignored(
    compiler: GrammarCompiler, pattern: str
) -> None:
    wanted = {"type": "object", "properties": {"p": {"type": "string", "pattern": pattern}},
              "patternProperties": {pattern: {"type": "integer"}}}  # fmt: skip
    grammar = compiler.compile(source(wanted, is_strict=False))
    assert admits(compiler, grammar, {"p": "a.b"})
    assert not admits(compiler, grammar, {"p": 1})
    with pytest.raises(GrammarRefused):
        compiler.compile(source(wanted))


@pytest.mark.parametrize("name", sorted(FORMAT_PATTERNS))
def test_patterns_of_formats_agree_with_another_reader(name: str) -> None:
    """Patterns of formats admit all valid texts; of regular expressions they admit some."""
    judge = jsonschema_rs.validator_for({"type": "string", "format": name}, validate_formats=True)
    pattern = re.compile(FORMAT_PATTERNS[name])
    parts = [
        "",
        "a",
        "urn:",
        "/",
        "~0",
        "~",
        "0",
        "12",
        "#",
        "?",
        ":",
        "//h",
        "@",
        "%41",
        "%4",
        "é",
        "-",
        ".",
    ]
    parts += PARTS_OF_REGEXES if name == "regex" else []
    rng = random.Random(7)
    admitted = 0
    for _ in range(5_000):
        text = "".join(rng.choices(parts, k=rng.randrange(6)))
        found, is_valid = pattern.search(text) is not None, judge.is_valid(text)
        assert found == is_valid or (name == "regex" and is_valid), text
        admitted += found
    assert admitted > 50


@pytest.mark.parametrize(
    ("pattern", "start"),
    [("^ab", "ab"), ("^ab?", "a"), ("^ab+c", "ab"), (r"^a\.b", "a.b"), (r"^a\d", "a"), ("ab", ""),
     ("^a|b", ""), ("^a{0}", ""), ("^(a)", ""), ("^", "")],
)  # fmt: skip
def test_the_literal_start_of_a_pattern(pattern: str, start: str) -> None:
    assert literal_start(pattern) == start


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [("^[a-z]*$", "by", True), ("^[a-z]*$", "By", False), (".*", "x", True), ("a", "bab", True),
     ("^[a-z]*", "B", True), ("(a*)*b", "a", None), (r"\w", "a", None), ("[z-a]", "a", None),
     ("a*a*a*", "a", None), (".*", "a\n", None)],
)  # fmt: skip
def test_plain_patterns_are_matched_and_others_are_not(
    pattern: str, text: str, expected: bool | None
) -> None:
    assert matches(pattern, text) is expected


def test_random_grammars_admit_valid_values_only(compiler: GrammarCompiler) -> None:
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    compiled = admitted = 0
    for _ in range(400):
        drawn = schema(rng)
        try:
            grammar = compiler.compile(source(drawn))
        except GrammarRefused:
            continue
        compiled += 1
        judge = Draft202012Validator(drawn)
        for _ in range(10):
            answer = value(rng)
            if admits(compiler, grammar, answer):
                admitted += 1
                assert judge.is_valid(answer), (seed, drawn, answer)
    assert min(compiled, admitted) > 50, seed
