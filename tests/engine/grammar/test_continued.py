"""Grammars after a part of an answer: the limits and the masks of the answer that was not cut."""

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from specdecode_engine.grammar import Grammar, GrammarFault, Matcher

EOS = 5
EVERY = 10


def words(most: int, chars: int) -> dict[str, Any]:
    counted = rf"^(?:\S+\s+){{0,{most - 1}}}\S+$"
    return {"type": "string", "maxLength": chars, "pattern": counted}


def record(*fields: dict[str, Any]) -> str:
    names = [f"f{number}" for number in range(len(fields))]
    properties = dict(zip(names, fields, strict=True))
    return json.dumps({"type": "object", "properties": properties, "required": names})


TEXT = {"type": "string", "maxLength": 200}
NESTED = {"type": "array", "items": {"type": "array", "items": TEXT, "minItems": 2}, "minItems": 2}
LONG = {
    "words": ("json_schema", record(words(20, 200), words(20, 200))),
    "texts": ("json_schema", record(TEXT, {"type": "string", "maxLength": 2000})),
    "arrays": ("json_schema", record(NESTED)),
    "numbers": ("regex", "([0-9]{1,30}(,[0-9]{1,30}){0,40};){3,90}"),
    "rules": ("ebnf", 'root ::= line{3,60}\nline ::= [a-z ]{40,300} "(" [a-z]{0,100} ")"'),
}


@pytest.fixture(params=LONG)
def grammar(request: pytest.FixtureRequest, compile_text: Callable[..., Grammar]) -> Grammar:
    return compile_text(*LONG[request.param])


def write(
    matcher: Matcher, allowed: Callable[[Matcher], set[int]], spellings: list[bytes], most: int
) -> list[set[int]]:
    """Append tokens that may come next, as in long texts; return what could have, before each."""
    rng, masks = random.Random(1), []
    rare = {token for token, piece in enumerate(spellings) if b'"' in piece}
    space = spellings.index(b" ")
    while len(matcher.tokens) < most:
        mask = allowed(matcher)
        if not (options := sorted(mask - {EOS})):
            break
        usual = sorted(mask - {EOS} - rare) if rng.random() < 0.97 else []
        is_space = space in mask and rng.random() < 0.2
        matcher.advance(space if is_space else rng.choice(usual or options))
        masks.append(mask)
    return masks


def test_a_continued_answer_has_the_masks_of_one_that_was_not_cut(
    grammar: Grammar, allowed: Callable[[Matcher], set[int]], spellings: list[bytes]
) -> None:
    unbroken = grammar.follow(())
    masks = write(unbroken, allowed, spellings, 12 * EVERY)
    assert len(masks) > 8 * EVERY
    for begun in range(0, len(masks), EVERY):
        continued = grammar.compile_again().follow(unbroken.tokens[:begun])
        for token, mask in list(zip(unbroken.tokens, masks, strict=True))[begun : begun + EVERY]:
            assert allowed(continued) == mask
            continued.advance(token)


def test_an_answer_fails_at_the_same_token_when_it_is_continued(
    compile_text: Callable[..., Grammar],
    allowed: Callable[[Matcher], set[int]],
    spellings: list[bytes],
) -> None:
    grammar = compile_text("regex", "((a{0,100}){0,100}){0,100}")
    unbroken = grammar.follow(())
    with pytest.raises(GrammarFault, match="too many expressions"):
        write(unbroken, allowed, spellings, 500)
    assert unbroken.tokens
    grammar.compile_again().follow(unbroken.tokens[:-1])
    with pytest.raises(GrammarFault, match="too many expressions"):
        grammar.compile_again().follow(unbroken.tokens)


def test_tokens_are_followed_once_when_a_matcher_is_kept(
    compile_text: Callable[..., Grammar], spellings: list[bytes]
) -> None:
    a, b = spellings.index(b"a"), spellings.index(b"b")
    grammar = compile_text("regex", "(ab?)*")
    matcher = grammar.follow((a, b))
    grammar.keep(matcher)
    assert grammar.follow([a, b]) is matcher
    assert grammar.follow([a, b]) is not matcher, "two requests never share a matcher"
    for other in ((a,), (a, a), (a, b, a)):
        grammar.keep(matcher)
        assert grammar.follow(other).tokens == list(other)
    grammar.keep(matcher)
    assert grammar.follow((a, b), ends_late=True) is not matcher


def test_a_prepared_answer_is_ready_or_fails_when_it_is_followed(
    compile_text: Callable[..., Grammar], spellings: list[bytes]
) -> None:
    a, b = spellings.index(b"a"), spellings.index(b"b")
    pauses: list[int] = []
    grammar = compile_text("regex", "a*")
    grammar.prepare((a, a), True, lambda: pauses.append(1))
    assert len(pauses) == 2
    assert grammar.follow((a, a), ends_late=True).tokens == [a, a]
    grammar.prepare((a, b), False, lambda: None)
    with pytest.raises(GrammarFault, match="doesn't satisfy the grammar"):
        grammar.follow((a, b))
