"""GBNF grammars accept the texts that they describe, however the lexer cuts them."""

import random

import pytest

from checks.grammars.random_gbnf import disturb, make_grammar
from checks.grammars.reading import GrammarReader, compiler_of_bytes
from specdecode_engine.grammar import GrammarCompiler
from specdecode_engine.grammar.gbnf import gbnf_to_lark, lexemes

ACCEPTED = [
    ('root ::= "\\u0041\\x42\\U00000043\\n"', ["ABC\n"], ["ABC", "\u4143"]),
    ('root ::= "\\x7f\\u007F"', ["\x7f\x7f"], ["\x7f"]),
    ('root ::= "a"\n  | "b"\n', ["a", "b"], ["ab", ""]),
    ('root ::= item\nitem ::=\n    "x"\n  | "y" "z" # c\n', ["x", "yz"], ["y"]),
    ('root ::= "a" |\n  "b"', ["a", "b"], ["c"]),
    ('root ::= "{" (\n  "x" |\n  "y"\n) "}"\n', ["{x}", "{y}"], ["{xy}"]),
    ('root ::= "a"\n  "b"\r\n\r\nnext ::= "c"', ["ab"], ["a"]),
    ("root ::= [a\\-z]{2}", ["a-", "zz"], ["b-"]),
    ("root ::= [a&&b~~c]{2}", ["a&", "~c"], ["d&"]),
    ('root ::= [^"\\\\\\x7F\\x00-\\x1F]{3}', ["abc", "é日😀"], ['a"b', "a\x7fb"]),
    ("root ::= [-a] [a-] [a^] [\\]\\[] [+/.]", ["--^]/", "aaa[."], ["--b]/"]),
    ('root ::= "a" "b"{0} "c"{0,0} "d"{0,}', ["a", "add"], ["ab"]),
    ('root ::= "a"{ 2 , 3 } "b" ? "c" *', ["aa", "aaabcc"], ["a", "aaaa"]),
    ('root ::= "ab"* ("c"{2}){2}', ["cccc", "ababcccc"], ["abacccc"]),
    ('root ::= foo Foo FOO\nfoo ::= "1"\nFoo ::= "2"\nFOO ::= "3"', ["123"], ["111"]),
    ('root ::= start T0 r1\nstart ::= "s"\nT0 ::= "t"\nr1 ::= "r"', ["str"], ["s"]),
    ('root ::= a-b a_b 1\na-b ::= "x"\na_b ::= "y"\n1 ::= "z"', ["xyz"], ["xxz"]),
    ("root ::= . .", ["a\n", "é😀"], ["a"]),
    ("root ::= ", [""], ["a"]),
    ('root ::= | "a"', ["", "a"], ["aa"]),
    ('root ::= "a" "ab" | "aa" "c"', ["aab", "aac"], ["aa"]),
    ('root ::= "(" root ")" | "a" "ab" | "aa" "c"', ["(aab)", "((aac))"], ["(aa)", "(aab"]),
    ('root ::= x* "ab"\nx ::= "a" | "(" root ")"', ["ab", "aaab", "(ab)aab"], ["aba"]),
    ('root ::= word | root " " word\nword ::= [a-z]+', ["a", "ab cd ef"], ["ab ", " a"]),
    ('root ::= "x" root | e "e"\ne ::= "a"', ["ae", "xae"], ["xe"]),
    ('root ::= "a" [é-ë] | "aè" root | "b"', ["aé", "aèb", "aèaê"], ["aèa", "aà"]),
]


@pytest.fixture(scope="module")
def byte_compiler() -> GrammarCompiler:
    return compiler_of_bytes()


@pytest.mark.parametrize(("source", "right", "wrong"), ACCEPTED, ids=range(len(ACCEPTED)))
def test_a_construct_accepts_what_it_describes(
    byte_compiler: GrammarCompiler, source: str, right: list[str], wrong: list[str]
) -> None:
    reader = GrammarReader(byte_compiler, source)
    assert [text for text in right if not reader.accepts(text)] == []
    assert [text for text in wrong if reader.accepts(text)] == []


@pytest.mark.parametrize("seed", range(20))
def test_random_grammars_accept_what_they_describe(
    byte_compiler: GrammarCompiler, seed: int
) -> None:
    rng = random.Random(seed)
    grammar = make_grammar(rng)
    reader = GrammarReader(byte_compiler, grammar.source)
    for _ in range(3):
        text = grammar.draw(rng)
        assert grammar.matches(text)
        assert reader.accepts(text), (text, grammar.source)
        other = disturb(rng, text)
        assert reader.accepts(other) == grammar.matches(other), (other, grammar.source)


def test_large_parts_stay_terminals_where_nothing_conflicts() -> None:
    """A mask of a terminal is read from an automaton; one of single characters is parsed."""
    source = """
        root ::= "[" ws (word ("," ws word)*)? "]"
        word ::= "\\"" [^"\\\\]* "\\"" ws | root
        ws ::= " "{0,20}
    """
    lark = gbnf_to_lark(source)
    rules = [line for line in lark.splitlines() if line.startswith(("start", "r"))]
    assert not [rule for rule in rules if "/[" in rule], lark


def test_a_long_search_leaves_terminals_of_one_character(
    byte_compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexemes, "MAX_STEPS", 0)
    source = 'root ::= "(" root ")" | [a-c]+ "end"'
    assert "end" not in gbnf_to_lark(source)
    reader = GrammarReader(byte_compiler, source)
    assert reader.accepts("((abcend))")
    assert not reader.accepts("(abcen)")
