"""Lark grammars: how they differ from GBNF, what they may not have, and places of errors."""

import json
from collections.abc import Callable

import pytest

from checks.grammars.reading import GrammarReader, compiler_of_bytes
from specdecode_engine.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarKind,
    GrammarRefused,
    GrammarSource,
)
from specdecode_engine.grammar.lark import is_gbnf
from specdecode_engine.grammar.trial import walk

NOTATIONS = [
    ('?start: a\na: "x"', False),
    ('!start: "x"', False),
    ('!?start: "x"', False),
    ("start: a\n  | b", False),
    ('// root ::= "a"\nstart: a', False),
    ('# root ::= "a"\n\n%import common.INT\nstart: INT', False),
    ('%llguidance {}\nstart: "::="', False),
    ('a[capture]: "x"\nstart: a', False),
    ('a.1: "x"', False),
    ("start : a", False),
    ("_a: B", False),
    ('# start: a\nroot ::= "a"', True),
    ('\n\n  start ::= "a"', True),
    ('foo-bar\t::= "a: b"', True),
    ('root = "a"', None),
    ("", None),
    ('"a"', None),
]
REFUSED = [
    ("start: foo", 'line 1, column 8: unknown name: "foo"'),
    ('start: "é" )', "line 1, column 12: expecting rule"),
    ('start: a\na: "b" )', "line 2, column 8: expecting rule"),
    ("start: 'a'", "line 1, column 8: lexer error"),
    ('root: "a"', "line 1, column 1: the grammar has no rule `start`"),
    ('root = "a"', "line 1, column 1: expected a rule: `root ::= …` in GBNF"),
    ('start: @foo "a"\n', "line 1, column 8: unknown grammar @foo"),
    ('start: "a"\n  | %json {', 'line 2, column 5: failed to parse "%json"'),
    ("start: a\na[max_tokens=9]: /b/", "line 2, column 3: `max_tokens=` .* bound the repetition"),
    ('start: a "b"\na[ lazy, stop = "b"]: /c/', "line 2, column 10: `stop=` .*`suffix=`"),
    ("start: a\na[temperature=0.5]: /b/", "line 2, column 3: `temperature=` .* of the request"),
]
ACCEPTED = [
    ('?start: a\na: "x"', ["x"], [""]),
    ('!start: "x"', ["x"], [""]),
    ('start: a\n  | b\na: "x"\nb: "y"', ["x", "y"], ["xy"]),
    ('start: a "b"\na[suffix="x"]: /[0-9]{1,3}/', ["12xb"], ["1234xb", "1b"]),
    ('start: a // max_tokens=1\na[capture="stop="]: /max_tokens=[0-9]/', ["max_tokens=1"], [""]),
]


@pytest.fixture(scope="module")
def byte_compiler() -> GrammarCompiler:
    return compiler_of_bytes()


@pytest.mark.parametrize(("source", "expected"), NOTATIONS, ids=range(len(NOTATIONS)))
def test_the_first_rule_decides_the_notation(source: str, expected: bool | None) -> None:
    assert is_gbnf(source) is expected


@pytest.mark.parametrize(("source", "message"), REFUSED, ids=range(len(REFUSED)))
def test_an_error_has_its_place(
    compile_text: Callable[..., Grammar], source: str, message: str
) -> None:
    with pytest.raises(GrammarRefused, match="^" + message):
        compile_text("ebnf", source)


@pytest.mark.parametrize(("source", "right", "wrong"), ACCEPTED, ids=range(len(ACCEPTED)))
def test_lark_is_read_as_it_is(
    byte_compiler: GrammarCompiler, source: str, right: list[str], wrong: list[str]
) -> None:
    reader = GrammarReader(byte_compiler, source)
    assert [text for text in right if not reader.accepts(text)] == []
    assert [text for text in wrong if reader.accepts(text)] == []
    grammar = byte_compiler.compile(GrammarSource(GrammarKind.EBNF, source))
    walk(grammar, byte_compiler.num_words, 16)


def test_choices_may_contain_any_character(byte_compiler: GrammarCompiler) -> None:
    choices = ['a"b\\', "\x7f", "\n\t", "é😀", "//", "<s>"]
    reader = GrammarReader(byte_compiler, json.dumps(choices), GrammarKind.CHOICE)
    assert [choice for choice in choices if not reader.accepts(choice)] == []
    assert not reader.accepts("a")
