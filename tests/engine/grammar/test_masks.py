"""Masks against brute force: every token, at every state of random walks."""

import itertools
import json
import random
import re
from collections.abc import Callable

import numpy as np
import pytest

from specdecode_engine.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarFault,
    GrammarKind,
    GrammarSource,
    Matcher,
    TokenBytes,
)

EOS = 5
REGEXES = [
    "ab?c?",
    "(ab|ca)*",
    "a{2,4}b|c+",
    "(a|b)(b|c)(c|a)",
    "[^a]{1,3}",
    "",
    "abcabc",
    "(a|ab)(c|bcd)",
]
MOST_CHARS = 6

JSON_SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "array", "items": {"type": "boolean"}},
        },
        "required": ["a"],
        "additionalProperties": False,
    }
)
SUM = 'root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")"'
GRAMMARS = [
    ("json_schema", JSON_SCHEMA),
    ("ebnf", SUM),
    ("choice", '["abc", "ab", "cab"]'),
    ("regex", "é*€?"),
]


def walk(matcher: Matcher, allowed, rng: random.Random, most: int) -> list[int]:
    """Take random allowed tokens, none of which ends the answer."""
    tokens: list[int] = []
    while len(tokens) < most and (options := sorted(allowed(matcher) - {EOS})):
        tokens.append(rng.choice(options))
        matcher.advance(tokens[-1])
    return tokens


@pytest.mark.parametrize("pattern", REGEXES)
def test_a_token_is_allowed_if_a_full_match_begins_so(
    compile_text: Callable[..., Grammar], allowed, spellings, pattern: str
) -> None:
    """The oracle is Python's `re` over every text of up to six letters."""
    alphabet = "abcd"
    texts = {
        "".join(letters)
        for count in range(MOST_CHARS + 1)
        for letters in itertools.product(alphabet, repeat=count)
    }
    matches = {text for text in texts if re.fullmatch(pattern, text)}
    prefixes = {text[:end] for text in matches for end in range(len(text) + 1)}
    grammar = compile_text("regex", pattern)
    pieces = {
        token: piece.decode()
        for token, piece in enumerate(spellings)
        if piece and token not in (0, 1, EOS) and set(piece.decode("latin-1")) <= set(alphabet)
    }
    rng = random.Random(pattern)
    for _ in range(20):
        matcher, text = grammar.follow(()), ""
        while len(text) <= 2:
            got = allowed(matcher)
            expected = {token for token, piece in pieces.items() if text + piece in prefixes}
            assert got & pieces.keys() == expected, text
            assert (EOS in got) == (text in matches)
            if not expected:
                break
            token = rng.choice(sorted(expected))
            matcher.advance(token)
            text += pieces[token]


@pytest.mark.parametrize(("kind", "source"), GRAMMARS)
def test_every_bit_shows_whether_the_token_can_be_taken(
    compile_text: Callable[..., Grammar], allowed, kind: str, source: str
) -> None:
    grammar = compile_text(kind, source)
    for seed in range(8):
        matcher = grammar.follow(())
        tokens = walk(matcher, allowed, random.Random(seed), seed * 2)
        got = allowed(matcher)
        for token in range(97):
            library = grammar.start_state.deep_copy()
            assert library.consume_tokens(tokens) or not tokens
            assert library.consume_token(token) == (token in got), token


def test_twins_are_allowed_together_and_empty_special_and_unknown_ids_never(
    compile_text: Callable[..., Grammar], allowed, spellings
) -> None:
    twins = {token for token, piece in enumerate(spellings) if piece == b"a"}
    assert len(twins) == 2
    anything = allowed(compile_text("regex", r"(.|\n)*").follow(()))
    assert twins <= anything
    second_halves = {spellings.index(b"\xa9"), spellings.index(b"\xac")}
    spelled = {token for token, piece in enumerate(spellings) if piece}
    assert anything == spelled - {0, 1} - second_halves


def test_half_a_character_is_continued_by_its_other_half_only(
    compile_text: Callable[..., Grammar], allowed, spellings
) -> None:
    matcher = compile_text("regex", "[é€]x").follow(())
    matcher.advance(spellings.index(b"\xe2\x82"))
    assert allowed(matcher) == {spellings.index(b"\xac")}


def test_an_answer_ends_where_the_grammar_may_end_and_late_where_asked(
    compile_text: Callable[..., Grammar], allowed, spellings
) -> None:
    grammar = compile_text("regex", "ab?")
    a, b = spellings.index(b"a"), spellings.index(b"b")
    early, late = grammar.follow((a,)), grammar.follow((a,), ends_late=True)
    assert allowed(early) == {EOS, b}
    assert allowed(late) == {b}
    for matcher in (early, late):
        matcher.advance(b)
        assert allowed(matcher) == {EOS}
        assert matcher.ends_with(EOS)
        assert not matcher.ends_with(b)


def test_every_token_that_ends_an_answer_comes_late_where_asked(allowed, spellings) -> None:
    ends = frozenset({0, 1, EOS})  # all in one word of the mask
    compiler = GrammarCompiler(TokenBytes(spellings, ends, ends))
    grammar = compiler.compile(GrammarSource(GrammarKind.REGEX, "ab?"))
    a, b = spellings.index(b"a"), spellings.index(b"b")
    assert allowed(grammar.follow((a,))) == {b, *ends}
    assert allowed(grammar.follow((a,), ends_late=True)) == {b}


def test_white_space_between_the_parts_of_json_comes_to_an_end(
    compile_text: Callable[..., Grammar], allowed, spellings
) -> None:
    grammar = compile_text("json_schema", '{"type": "object"}')
    brace, space, line = (spellings.index(piece) for piece in (b"{", b" ", b"\n"))
    for opening, room in (([brace], 2), ([brace, line], 32)):
        matcher = grammar.follow(opening)
        for _ in range(room):
            assert space in allowed(matcher)
            matcher.advance(space)
        assert not {space, line} & allowed(matcher)


def test_a_grammar_that_gives_up_reports_it_and_takes_nothing_more(
    compile_text: Callable[..., Grammar], allowed
) -> None:
    grammar = compile_text("regex", "((a{0,100}){0,100}){0,100}")
    with pytest.raises(GrammarFault, match="too many expressions"):
        walk(grammar.follow(()), allowed, random.Random(1), 500)
    with pytest.raises(GrammarFault):
        grammar.follow(()).fill(np.zeros(4, dtype=np.int32))


def test_a_token_that_is_forbidden_is_a_fault(
    compile_text: Callable[..., Grammar], spellings
) -> None:
    grammar = compile_text("regex", "a*")
    for token in (spellings.index(b"b"), 96, 97, 10**6):
        with pytest.raises(GrammarFault):
            grammar.follow((spellings.index(b"a"), token))
