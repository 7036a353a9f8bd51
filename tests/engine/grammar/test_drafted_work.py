"""Masks of drafted tokens that are too much for a lexer: the answer is that of plain decoding."""

import random
from collections.abc import Callable

import pytest
import torch

from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.grammar import Grammar, GrammarFault, Matcher
from specdecode_engine.sampling.grammar_masks import DraftOnHost, GrammarMasks
from tests.engine.grammar.test_continued import LONG, record, words, write

EOS = 5
VOCAB = 97
NODES = 25
STEPS = 40
Compile = Callable[..., Grammar]
Allowed = Callable[[Matcher], set[int]]


def draw_tree(rng: random.Random, options: list[int]) -> DraftOnHost:
    tokens = [0, *rng.choices(options, k=NODES - 1)]
    parents = [0, *(rng.randrange(node) for node in range(1, NODES))]
    return DraftOnHost(torch.tensor([[tokens, parents]]), (NODES,), None)


def plain_masks(
    grammar: Grammar, allowed: Allowed, rng: random.Random
) -> list[tuple[set[int], int]]:
    """The mask before each token of an answer, until it ends or its grammar fails."""
    matcher, found = grammar.follow(()), []
    for _ in range(STEPS):
        try:
            mask = allowed(matcher)
        except GrammarFault:
            break
        if not (options := sorted(mask - {EOS})):
            break
        token = rng.choice(options)
        found.append((mask, token))
        matcher.advance(token)
    return found


def test_a_lexer_that_starts_again_has_the_same_masks(
    compile_text: Compile, allowed: Allowed, spellings: list[bytes]
) -> None:
    for source in LONG.values():
        grammar, matcher = compile_text(*source), compile_text(*source).follow(())
        write(matcher, allowed, spellings, 150)
        again = grammar.start_again(matcher.tokens, False)
        assert again.tokens == matcher.tokens
        assert allowed(again) == allowed(matcher)


@pytest.mark.parametrize("seed", range(4))
def test_a_lexer_that_drafts_exhaust_starts_again(
    compile_text: Compile, allowed: Allowed, seed: int
) -> None:
    source, rng = ("json_schema", record(words(70, 700))), random.Random(seed)
    plain = plain_masks(compile_text(*source), allowed, rng)
    masks = GrammarMasks(VOCAB, StagingBuffer(torch.device("cpu")))
    masks.clock = lambda: 0.0
    masks.open(0, compile_text(*source), [], False)
    limits = []
    for mask, token in [*plain, (set[int](), EOS)]:
        batch, tree = masks.stage([0]), draw_tree(rng, sorted(mask - {EOS}) or [EOS])
        assert batch is not None
        masked = masks.apply(torch.zeros(1, NODES, VOCAB), batch, tree)
        if mask:
            assert set(masked[0, 0].isfinite().nonzero().flatten().tolist()) == mask
            assert masks.follow(0, (token,)) is None
            limits += tree.depths
    assert (limits[0], limits[-1]) == (None, 0)
    assert masks.follow(0, (EOS,)) == "lexer error: too many expressions constructed"
