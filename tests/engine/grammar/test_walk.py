"""The walk over a draft tree against each of its paths alone."""

import itertools
import json
import random
from collections.abc import Callable

import numpy as np
import pytest

from specdecode_engine.grammar import Grammar, GrammarFault, Matcher, mask_nodes
from specdecode_engine.grammar.matcher import allows

EOS = 5
SOURCES = [
    ("json_schema", json.dumps({"type": "object", "properties": {"a": {"type": "string"}}})),
    ("regex", "(ab?c|[0-9]{2,5}x)*"),
    ("ebnf", 'root ::= [a-z]+ "(" (root ("," root)*)? ")"'),
]


def draw_tree(
    grammar: Grammar, allowed, committed: list[int], rng: random.Random, nodes: int, topk: int
) -> tuple[list[int], list[int]]:
    """Draw a tree of which most tokens are legal where they stand."""
    tokens, parents, paths = [0], [0], [list(committed)]
    for _ in range(nodes - 1):
        parent = len(tokens) - 1 if topk == 1 else rng.randrange(len(tokens))
        try:
            legal = sorted(allowed(grammar.follow(paths[parent])))
        except GrammarFault:
            legal = []
        token = rng.choice(legal) if legal and rng.random() < 0.8 else rng.randrange(110)
        tokens.append(token)
        parents.append(parent)
        paths.append([*paths[parent], token])
    return tokens, parents


def is_alive(node: int, tokens: list[int], parents: list[int], rows: np.ndarray) -> bool:
    if node == 0:
        return True
    parent = parents[node]
    if tokens[node] == EOS or not is_alive(parent, tokens, parents, rows):
        return False
    return allows(rows[parent], tokens[node])


def path_to(node: int, tokens: list[int], parents: list[int]) -> list[int]:
    return [] if node == 0 else [*path_to(parents[node], tokens, parents), tokens[node]]


@pytest.mark.parametrize(("kind", "text"), SOURCES)
@pytest.mark.parametrize("topk", [1, 4])
@pytest.mark.parametrize("ends_late", [False, True])
def test_r12_every_node_as_if_its_path_were_the_output(
    compile_text: Callable[..., Grammar], allowed, kind: str, text: str, topk: int, ends_late: bool
) -> None:
    grammar = compile_text(kind, text)
    dead = reached = 0
    for seed in range(12):
        rng = random.Random(seed)
        committed: list[int] = []
        for _ in range(seed):
            options = sorted(allowed(grammar.follow(committed)) - {EOS})
            committed += [rng.choice(options)] if options else []
        tokens, parents = draw_tree(grammar, allowed, committed, rng, 14, topk)
        matcher = grammar.follow(committed, ends_late)
        before = allowed(matcher)
        rows = np.empty((len(tokens), 4), dtype=np.int32)
        mask_nodes(matcher, tokens, parents, rows)
        for node in range(len(tokens)):
            if is_alive(node, tokens, parents, rows):
                reached += 1
                path = path_to(node, tokens, parents)
                alone = np.empty(4, dtype=np.int32)
                grammar.follow([*committed, *path], ends_late).fill(alone)
                assert (rows[node] == alone).all()
            else:
                dead += 1
                assert (rows[node] == -1).all(), "a dead node's mask must not forbid everything"
        assert allowed(matcher) == before, "the matcher is back where it was"
    assert dead
    assert reached > 12


def test_a_draft_past_the_end_of_the_answer_is_not_followed(
    compile_text: Callable[..., Grammar], spellings
) -> None:
    a = spellings.index(b"a")
    rows = np.empty((4, 4), dtype=np.int32)
    mask_nodes(compile_text("regex", "a").follow(()), [0, a, EOS, a], [0, 0, 1, 2], rows)
    assert allows(rows[0], a)
    assert not allows(rows[0], EOS)
    assert allows(rows[1], EOS)
    assert not allows(rows[1], a)
    assert (rows[2:] == -1).all()


def test_the_same_token_twice_among_siblings_is_walked_twice(
    compile_text: Callable[..., Grammar], spellings
) -> None:
    twins = [token for token, piece in enumerate(spellings) if piece == b"a"]
    matcher: Matcher = compile_text("regex", "ab").follow(())
    rows = np.empty((3, 4), dtype=np.int32)
    mask_nodes(matcher, [0, *twins], [0, 0, 0], rows)
    assert (rows[1] == rows[2]).all()
    assert allows(rows[1], spellings.index(b"b"))


def late_after(count: int) -> Callable[[], bool]:
    calls = itertools.count()
    return lambda: next(calls) >= count


@pytest.mark.parametrize("topk", [1, 4])
def test_after_the_time_of_a_walk_every_node_that_may_be_accepted_is_masked(
    compile_text: Callable[..., Grammar], allowed, topk: int
) -> None:
    grammar = compile_text(*SOURCES[0])
    limits = set()
    for seed in range(12):
        tokens, parents = draw_tree(grammar, allowed, [], random.Random(seed), 14, topk)
        whole, cut = (np.empty((len(tokens), 4), dtype=np.int32) for _ in range(2))
        assert mask_nodes(grammar.follow(()), tokens, parents, whole) is None
        matcher = grammar.follow(())
        limit = mask_nodes(matcher, tokens, parents, cut, late_after(seed // 2))
        limits.add(limit)
        for node in range(len(tokens)):
            depth = len(path_to(node, tokens, parents))
            if limit is None or depth <= limit:
                assert (cut[node] == whole[node]).all()
        assert allowed(matcher) == allowed(grammar.follow(()))
    assert 0 in limits
    assert len(limits) > 1
