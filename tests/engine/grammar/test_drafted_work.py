"""Masks of drafted tokens that are too much for a lexer: the answer is that of plain decoding."""

import random
from collections.abc import Callable

import pytest
import torch

from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.grammar import Grammar, GrammarFault, Matcher
from specdecode_engine.sampling.grammar_masks import DraftOnHost, GrammarMasks
from tests.engine.grammar.test_continued import record, words

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


@pytest.mark.parametrize("seed", range(4))
def test_an_answer_that_drafts_cut_goes_on_with_a_lexer_of_its_own(
    compile_text: Compile, allowed: Allowed, seed: int
) -> None:
    source, rng = ("json_schema", record(words(70, 700))), random.Random(seed)
    plain = plain_masks(compile_text(*source), allowed, rng)
    tokens = [token for _, token in plain]
    grammar = compile_text(*source)
    masks = GrammarMasks(VOCAB, StagingBuffer(torch.device("cpu")))
    masks.clock = lambda: 0.0
    masks.open(0, grammar, [], False)
    done = 0
    for mask, token in plain:
        batch, tree = masks.stage([0]), draw_tree(rng, sorted(mask - {EOS}) or [EOS])
        assert batch is not None
        masks.apply(torch.zeros(1, NODES, VOCAB), batch, tree)
        if (fault := masks.follow(0, (token,))) is not None:
            assert fault == "lexer error: too many expressions constructed"
            break
        done += 1
    assert done < len(plain), "the masks of drafted tokens did not exhaust the lexer"
    continued = grammar.compile_again().follow(tokens[:done])
    for mask, token in plain[done:]:
        assert allowed(continued) == mask
        continued.advance(token)
