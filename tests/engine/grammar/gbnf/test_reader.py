"""What GBNF grammars are refused for, with the line and the column."""

from collections.abc import Callable

import pytest

from specdecode_engine.grammar import Grammar, GrammarRefused
from specdecode_engine.grammar.gbnf import GbnfError, gbnf_to_lark

REFUSED = [
    ("root ::= foo", "line 1, column 10: the rule `foo` is not defined"),
    ('root ::= (\n  "é" | foo*)', "line 2, column 9: the rule `foo` is not defined"),
    ('root ::= "a"\r\nb ::= $', "line 2, column 7: expected an item, `|` or a new rule; found `$`"),
    ('root ::= "a"\nroot ::= "b"', "line 2, column 1: the rule `root` is defined twice"),
    ('other ::= "a"', "line 1, column 1: the grammar has no rule `root`"),
    ('root ::= "a', 'line 1, column 10: the literal has no closing `"`'),
    ("root ::= [a-", "line 1, column 10: the class has no closing `]`"),
    ("root ::= []", r"line 1, column 10: the class \[\] has no character"),
    (r"root ::= [^\x00-\U0010FFFF]", "line 1, column 10: the class .* has no character"),
    ("root ::= [az-b]", "line 1, column 12: the range z-b is empty; swap its ends"),
    ('root ::= ("a"\nfoo ::= "x"', r"line 2, column 1: .* `\)` for the `\(` in line 1, column 10"),
    ('root ::= "a")', r"line 1, column 13: expected a new rule; found `\)`"),
    (r'root ::= "a\q"', r"line 1, column 12: the escape `\\q` is unknown"),
    (r"root ::= [\d]", r"line 1, column 11: the escape `\\d` is unknown"),
    (r'root ::= "\u12"', r"line 1, column 11: `\\u` needs 4 hexadecimal digits"),
    (r'root ::= "\uD800"', "line 1, column 11: .* is the code point of no character"),
    (r'root ::= "\U00110000"', "line 1, column 11: .* is the code point of no character"),
    ('root ::= "\ud800"', r"line 1, column 11: U\+D800 is a surrogate"),
    ('root ::= "a"{3,1}', r"line 1, column 13: \{3,1\} has a maximum below its minimum"),
    ('root ::= "a"{,3}', r"line 1, column 13: expected a repetition, as in `\{2\}`"),
    ('root ::= "a"{2000000}', "line 1, column 13: .* repeats more than 1000000 times"),
    ("root ::= *", r"line 1, column 10: expected an item, `|` or a new rule; found `\*`"),
    ('root ::= "a"************', "line 1, column 23: more than 10 operators follow one item"),
    ('root ::= "a" (= "b")', r"line 1, column 14: a lookahead `\(=…\)` is not supported"),
    ("root ::= !<[5]>", "line 1, column 10: a negated token is not supported"),
    ("root ::= <a b>", "line 1, column 10: expected a token, as in"),
    ("root ::= /a/", "line 1, column 10: expected an item, `|` or a new rule; found `/a/`"),
    ("root ::= 'a'", "line 1, column 10: expected an item, `|` or a new rule; found `'a'`"),
    ('root ::= x\nx ::= "a" x', "line 2, column 1: no text matches the rule `x`"),
    ("root ::= " + "(" * 301, "line 1, column 310: brackets nest deeper than 300 levels"),
]


@pytest.mark.parametrize(("source", "message"), REFUSED, ids=range(len(REFUSED)))
def test_an_error_has_its_place_and_what_was_expected(source: str, message: str) -> None:
    with pytest.raises(GbnfError, match="^" + message):
        gbnf_to_lark(source)


def test_tokens_are_found_in_the_vocabulary_or_refused(
    compile_text: Callable[..., Grammar], allowed: Callable[..., set[int]]
) -> None:
    grammar = compile_text("ebnf", 'root ::= <s> "a" <[1]>')
    matcher = grammar.follow(())
    assert allowed(matcher) == {1}
    for unknown, place in (("<think>", 14), ("<[300]>", 16)):
        with pytest.raises(GrammarRefused, match=f"^line 1, column {place}: "):
            compile_text("ebnf", f'root ::= "a" {unknown}')
