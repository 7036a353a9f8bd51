"""The sources of NGRAM: vectors, random texts against a slow restatement, bounds of memory."""

import random
from array import array
from collections.abc import Sequence

import pytest

from specdecode_engine.speculate.ngram.sources import (
    TOKEN_BYTES,
    DraftLimits,
    PromptLookup,
    SuffixTree,
    Trie,
    most_bytes,
)
from tests.engine.speculate.ngram.slow_sources import Limits, SlowSuffixes, SlowTrie, slow_lookup

INSERTED = ([1, 2, 3, 4, 5], [1, 2, 3, 6, 7], [9, 2, 3, 6, 8], [3, 6, 7, 1])
CHAIN = 1


def text(tokens: Sequence[int]) -> "array[int]":
    return array("i", tokens)


def fill(trie: Trie) -> Trie:
    for tokens in INSERTED:
        trie.insert(text(tokens))
    return trie


@pytest.mark.parametrize(
    ("context", "by_use", "by_count"),
    [
        (
            [1, 2, 3],
            ([6, 4, 7, 5, 8, 1], [0, 0, 1, 2, 1, 3]),
            ([4, 6, 5, 7, 8, 1], [0, 0, 1, 2, 2, 4]),
        ),
        (
            [5, 3],
            ([6, 4, 7, 8, 5, 1], [0, 0, 1, 1, 2, 3]),
            ([6, 7, 1, 4, 8, 5], [0, 1, 2, 0, 1, 4]),
        ),
        ([8, 4], ([5], [0]), ([5], [0])),
        ([2, 3, 6], ([8, 7, 1], [0, 0, 2]), ([7, 8, 1], [0, 0, 1])),
        ([42], ([], []), ([], [])),
    ],
)
def test_a_trie_drafts_by_last_use_and_by_count(context, by_use, by_count) -> None:
    for is_by_count, expected in ((False, by_use), (True, by_count)):
        trie = fill(Trie(6, 1000, max_breadth=4, by_count=is_by_count, widest=7))
        assert trie.draft(text(context), DraftLimits(7)) == expected


@pytest.mark.parametrize(
    ("tokens", "least", "most", "max_tokens", "expected"),
    [
        ([1, 2, 3, 4, 2, 3], 2, 3, 4, [4, 2, 3]),
        ([1, 2, 9, 1, 2, 8, 1, 2], 2, 2, 2, [9, 1]),
        ([1, 1, 1], 1, 2, 3, [1]),
        ([1, 2, 3], 2, 3, 4, []),
        ([7, 8, 7, 8, 7, 8], 2, 4, 3, [7, 8]),
    ],
)
def test_a_lookup_takes_the_earliest_of_the_longest_matches(
    tokens, least, most, max_tokens, expected
) -> None:
    found = PromptLookup(least, most).draft(text(tokens), DraftLimits(max_tokens))
    assert found == (expected, list(range(len(expected))))


@pytest.mark.parametrize(
    ("context", "expected", "score", "matched"),
    [([5, 1, 2, 3], [4, 5, 6], 2.0, 3), ([2, 3], [4], 2 / 3, 1)],
)
def test_a_suffix_tree_drafts_the_greatest_sum_of_probabilities(
    context, expected, score, matched
) -> None:
    tree = SuffixTree(64, 1000)
    for tokens in ([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 7, 8], [0, 2, 3, 9]):
        tree.append(text(tokens))
        tree.end_text()
    drafted = tree.draft(text(context), DraftLimits(8, max_children=CHAIN))
    assert drafted == (expected, list(range(len(expected))))
    assert (tree.score, tree.matched) == (score, matched)


def draw_text(rng: random.Random, vocab: int, most: int = 40) -> list[int]:
    """A random text, half of the time of repeated pieces."""
    tokens = [rng.randrange(vocab) for _ in range(rng.randint(1, most))]
    while rng.random() < 0.5:
        start = rng.randrange(len(tokens))
        tokens += tokens[start : start + rng.randint(1, 12)]
    return tokens


def draw_limits(rng: random.Random) -> tuple[DraftLimits, Limits]:
    numbers = rng.choice((1, 3, 7, 20)), rng.choice((1, 3, 6, 50)), rng.choice((1, 1, 2, 4, 30))
    return DraftLimits(*numbers), Limits(*numbers)


@pytest.mark.parametrize("by_count", [False, True])
def test_a_trie_equals_the_slow_one_while_leaves_go(by_count: bool) -> None:
    rng = random.Random(7)
    for _ in range(60):
        depth, capacity = rng.randint(1, 8), rng.choice((1, 2, 9, 30, 120, 4000))
        least, most = sorted((rng.randint(1, 3), rng.randint(1, 6)))
        shortest = rng.choice((1, 1, 2))
        slow = SlowTrie(depth, capacity, least, most, by_count=by_count, min_match=shortest)
        fast = Trie(
            depth,
            capacity,
            min_match=shortest,
            min_breadth=least,
            max_breadth=most,
            by_count=by_count,
            widest=20,
        )
        vocab = rng.choice((2, 4, 30))
        for _ in range(4):
            tokens = draw_text(rng, vocab)
            slow.insert(tokens)
            fast.insert(text(tokens))
            context = draw_text(rng, vocab, 6)
            own, slow_own = draw_limits(rng)
            expected = slow.draft(context, slow_own)
            assert fast.draft(text(context), own) == (expected.tokens, expected.parents)


def test_a_suffix_tree_equals_the_counts_of_all_strings() -> None:
    rng = random.Random(3)
    for _ in range(60):
        depth, vocab = rng.choice((1, 2, 5, 12)), rng.choice((1, 2, 3, 12))
        factor, least = rng.choice((1.0, 2.5, 0.4)), rng.choice((0.1, 0.03, 0.4))
        slow = SlowSuffixes(depth, factor, least)
        fast = SuffixTree(depth, 5000, factor=factor, least=least, widest=20)
        for _ in range(3):
            slow.texts.append([])
            for token in draw_text(rng, vocab, 24):
                slow.texts[-1].append(token)
                fast.append(text([token]))
            context = rng.choice((slow.texts[-1], draw_text(rng, vocab, 8)))
            for own, slow_own in (draw_limits(rng), draw_limits(rng)):
                expected, score, matched = slow.draft(context, slow_own)
                assert fast.draft(text(context), own) == (expected.tokens, expected.parents)
                assert (fast.score, fast.matched) == (score, matched)
            fast.end_text()


def test_a_lookup_equals_the_slow_one() -> None:
    rng = random.Random(5)
    for _ in range(400):
        tokens = draw_text(rng, rng.choice((1, 2, 5, 40)), 120)
        least, most = sorted((rng.randint(1, 4), rng.randint(1, 9)))
        count = rng.randint(1, 9)
        found = PromptLookup(least, most).draft(text(tokens), DraftLimits(count))
        assert found.tokens == slow_lookup(tokens, least, most, count)


@pytest.mark.parametrize("source", ["trie", "suffix", "prompt"])
def test_a_repeated_text_is_drafted_wholly(source: str) -> None:
    rng = random.Random(1)
    tokens = [rng.randrange(1000) for _ in range(200)]
    seen = [*tokens, *tokens[:20]]
    limits = DraftLimits(7, max_children=CHAIN)
    if source == "trie":
        trie = Trie(18, 10_000)
        trie.insert(text(seen))
        drafted = trie.draft(text(seen), limits)
    elif source == "suffix":
        tree = SuffixTree(64, 10_000)
        tree.append(text(seen))
        drafted = tree.draft(text(seen), limits)
    else:
        drafted = PromptLookup(3, 18).draft(text(seen), limits)
    assert drafted.tokens == tokens[20:27]


@pytest.mark.parametrize("capacity", [1, 2, 11, 12, 13, 14, 25])
@pytest.mark.parametrize("by_count", [False, True])
def test_capacities_about_the_depth_hold_texts_of_any_length(capacity: int, by_count: bool) -> None:
    rng = random.Random(capacity)
    trie = Trie(12, capacity, by_count=by_count)
    tree = SuffixTree(12, capacity)
    for _ in range(50):
        tokens = text(draw_text(rng, 5))
        trie.insert(tokens)
        tree.append(tokens)
        for source in (trie, tree):
            drafted = source.draft(tokens, DraftLimits(9))
            assert len(drafted.tokens) == len(drafted.parents) <= 9
            assert all(0 <= parent <= node for node, parent in enumerate(drafted.parents))
        assert trie.num_bytes <= most_bytes(capacity)
        assert tree.num_bytes <= most_bytes(capacity) + capacity * TOKEN_BYTES


@pytest.mark.parametrize("by_count", [False, True])
def test_memory_stays_in_its_bound_under_a_million_random_inserts(by_count: bool) -> None:
    rng = random.Random(2)
    capacity, tokens = 5000, text(rng.choices(range(50_000), k=1000))
    trie, tree = Trie(12, capacity, by_count=by_count), SuffixTree(12, capacity)
    for _ in range(1000):
        start = rng.randrange(900)
        tokens[start : start + 90] = text(rng.choices(range(50_000), k=90))
        trie.insert(tokens)
        tree.append(tokens)
        assert trie.num_bytes <= most_bytes(capacity)
        assert tree.num_bytes <= most_bytes(capacity) + capacity * TOKEN_BYTES
    for source in (trie, tree):
        assert source.draft(tokens[-30:-10], DraftLimits(4)).tokens[0] == tokens[-10]
