"""The prefix cache against a model of it: a dictionary from every cached beginning to its page."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.schedule.pages import PageAllocator
from specdecode_engine.schedule.prefix_cache import PrefixCache


@dataclass
class Page:
    """One cached page: where it lies, who uses it, when its last use ended."""

    number: int
    holders: set[int] = field(default_factory=set)
    stamp: int = 0


@dataclass
class Model:
    """The same cache without a tree, page by page. A key begins with the extra key."""

    page_size: int
    lookahead: int
    pages: dict[tuple[int, ...], Page] = field(default_factory=dict)
    time: int = 0

    def key(self, extra_key: int, tokens: list[int], pages: int) -> tuple[int, ...]:
        return (extra_key, *tokens[: pages * self.page_size + self.lookahead])

    def match(self, extra_key: int, tokens: list[int]) -> list[Page]:
        found = []
        for pages in range(1, (len(tokens) - 1) // self.page_size + 1):
            page = self.pages.get(self.key(extra_key, tokens, pages))
            if page is None:
                break
            found.append(page)
        return found

    def hold(self, holder: int, extra_key: int, tokens: list[int]) -> None:
        for page in self.match(extra_key, tokens):
            page.holders.add(holder)

    def insert(
        self, holder: int, extra_key: int, tokens: list[int], numbers: list[int]
    ) -> list[int]:
        surplus = []
        self.time += 1
        for count, number in enumerate(numbers, start=1):
            page = self.pages.setdefault(self.key(extra_key, tokens, count), Page(number))
            page.stamp = self.time
            if page.number != number:
                surplus.append(number)
        for page in self.pages.values():
            if holder in page.holders:
                page.holders.remove(holder)
                page.stamp = self.time
        return surplus

    def evict(self) -> int:
        parents = {key[: -self.page_size] for key in self.pages if len(key) > self.page_size}
        ends = [key for key, page in self.pages.items() if not page.holders and key not in parents]
        return self.pages.pop(min(ends, key=lambda key: self.pages[key].stamp)).number


@dataclass
class Sequence:
    tokens: list[int]
    pages: list[int]
    shared: int
    extra_key: int


class Walk:
    """Sequences that come, grow and go at random, on cache and model alike."""

    def __init__(self, seed: int, page_size: int, lookahead: int) -> None:
        self.rng = random.Random(seed)
        self.page_size, self.lookahead = page_size, lookahead
        self.cache = PrefixCache(page_size, lookahead)
        self.model = Model(page_size, lookahead)
        self.allocator = PageAllocator(60, page_size)
        self.running: dict[int, Sequence] = {}
        self.known = [[1, 1, 1]]

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(2) for _ in range(count)]

    def take(self, count: int) -> list[int]:
        missing = count - self.allocator.free
        if missing > 0:
            gone = self.cache.evict(missing)
            assert set(gone) == {self.model.evict() for _ in range(missing)}
            self.allocator.give_back(gone)
        return self.allocator.take(count)

    def open(self, holder: int) -> None:
        beginning = self.rng.choice(self.known)
        beginning = beginning[: self.rng.randrange(len(beginning) + 1)]
        tokens = beginning + self.tokens(self.rng.randrange(1, 3 * self.page_size + 2))
        extra_key = self.rng.choice([0, 0, 0, 1, 1, 2])
        shared, idle, last = self.cache.match(tokens, None, extra_key)
        expected = self.model.match(extra_key, tokens)
        assert shared == [page.number for page in expected]
        assert idle == sum(not page.holders for page in expected)
        needed = -(-len(tokens) // self.page_size) - len(shared)
        if needed > self.allocator.free + self.cache.idle_pages - idle:
            return
        self.cache.hold(holder, tokens, shared, last)
        self.model.hold(holder, extra_key, tokens)
        pages = shared + self.take(needed)
        self.running[holder] = Sequence(tokens, pages, len(shared), extra_key)
        self.known = [*self.known, tokens][-12:]

    def close(self, holder: int) -> None:
        sequence = self.running.pop(holder)
        most = (len(sequence.tokens) - self.lookahead) // self.page_size
        full = self.rng.randint(sequence.shared, max(most, sequence.shared))
        kept, rest = sequence.pages[:full], sequence.pages[full:]
        surplus, cached = self.cache.insert(holder, sequence.tokens, kept)
        assert len(cached) == len(surplus)
        assert surplus == self.model.insert(holder, sequence.extra_key, sequence.tokens, kept)
        self.allocator.give_back(surplus + rest)

    def check(self) -> None:
        cached = self.cache.check()
        in_use = {key[0] for key in self.model.pages}
        assert self.cache._roots.keys() == in_use | {s.extra_key for s in self.running.values()}
        assert cached == {page.number for page in self.model.pages.values()}
        assert len(cached) == len(self.model.pages) == self.cache.pages
        idle = [page for page in self.model.pages.values() if not page.holders]
        assert self.cache.idle_pages == len(idle)
        own = [page for s in self.running.values() for page in s.pages[s.shared :]]
        assert len(own) + len(cached) + self.allocator.free == self.allocator.total
        assert cached.isdisjoint(own)
        self.allocator.check()


@settings(max_examples=120, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    page_size=st.sampled_from([1, 2, 4, 16]),
    lookahead=st.sampled_from([0, 1]),
)
def test_a_random_walk_agrees_with_the_model_at_every_step(
    seed: int, page_size: int, lookahead: int
) -> None:
    walk = Walk(seed, page_size, lookahead)
    for step in range(150):
        if walk.running and walk.rng.random() < 0.45:
            walk.close(walk.rng.choice(list(walk.running)))
        else:
            walk.open(step)
        walk.check()
    for holder in list(walk.running):
        walk.close(holder)
    walk.check()
    assert walk.cache.idle_pages == walk.cache.pages


def hold(cache: PrefixCache, holder: int, tokens: list[int]) -> list[int]:
    """Hold the longest cached beginning; returns its pages."""
    pages, _, last = cache.match(tokens)
    cache.hold(holder, tokens, pages, last)
    return pages


def keep(cache: PrefixCache, tokens: list[int], pages: list[int]) -> list[int]:
    """Pass a sequence through the cache; returns the pages that it does not keep."""
    shared = hold(cache, 0, tokens)
    return cache.insert(0, tokens, shared + pages[len(shared) :])[0]


def test_a_match_leaves_a_token_to_compute() -> None:
    cache = PrefixCache(4)
    keep(cache, list(range(12)), [1, 2, 3])
    assert [len(cache.match(list(range(n)))[0]) for n in (1, 4, 5, 8, 9, 12, 13, 20)] == [
        0, 0, 1, 1, 2, 2, 3, 3,
    ]  # fmt: skip


def test_a_draft_that_looks_ahead_shares_a_page_only_before_the_same_token() -> None:
    """Row 3 of an EAGLE draft was computed from token 4."""
    for lookahead, shared in ((0, 1), (1, 0)):
        cache = PrefixCache(4, lookahead)
        keep(cache, [0, 1, 2, 3, 4], [1])
        assert len(cache.match([0, 1, 2, 3, 4, 9])[0]) == 1
        assert len(cache.match([0, 1, 2, 3, 9, 9])[0]) == shared


def test_looking_ahead_costs_a_page_for_each_continuation() -> None:
    cache = PrefixCache(2, lookahead=1)
    assert keep(cache, [0, 1, 2, 3, 7], [1, 2]) == []
    assert keep(cache, [0, 1, 2, 3, 8], [3, 4]) == []
    assert cache.match([0, 1, 2, 3, 7])[0] == [1, 2]
    assert cache.match([0, 1, 2, 3, 8])[0] == [1, 4]


def test_the_second_copy_of_a_page_is_returned() -> None:
    cache = PrefixCache(2)
    for holder in (1, 2):
        hold(cache, holder, [5, 5, 6, 6, 7])
    assert cache.insert(1, [5, 5, 6, 6, 7], [10, 11]) == ([], [])
    assert cache.insert(2, [5, 5, 6, 6, 8, 8, 9], [20, 21, 22]) == ([20, 21], [10, 11])
    assert cache.match([5, 5, 6, 6, 8, 8, 9])[0] == [10, 11, 22]


def test_eviction_takes_the_longest_unused_end_first_and_never_what_is_held() -> None:
    cache = PrefixCache(1)
    keep(cache, [1, 2, 3], [1, 2, 3])
    keep(cache, [1, 2, 4], [1, 2, 4])
    keep(cache, [7, 8], [7, 8])
    hold(cache, 9, [1, 2, 3, 0])
    assert (cache.pages, cache.idle_pages) == (6, 3)
    assert [cache.evict(1) for _ in range(3)] == [[4], [8], [7]]
    with pytest.raises(AssertionError, match="1 pages requested, 0 are idle"):
        cache.evict(1)
    cache.insert(9, [1, 2, 3, 0], [1, 2, 3])
    assert sorted(cache.evict(2)) == [2, 3]
    assert (cache.pages, cache.evicted_pages) == (1, 5)


def test_a_cache_that_is_off_keeps_nothing_and_counts_nothing() -> None:
    cache = PrefixCache(2, is_on=False)
    assert keep(cache, [1, 2, 3], [4]) == [4]
    assert cache.match([1, 2, 3])[0] == []
    assert (cache.pages, cache.queried_tokens) == (0, 0)


@pytest.mark.parametrize("is_on", [True, False])
def test_a_tree_that_is_empty_and_not_in_use_is_forgotten(is_on: bool) -> None:
    """Clients choose extra keys: each would else cost memory for ever."""
    cache = PrefixCache(2, is_on=is_on)
    for number in range(1000):
        pages, _, last = cache.match([1, 2, 3], None, f"key {number}")
        cache.hold(0, [1, 2, 3], pages, last)
        assert len(cache._roots) == 1
        cache.insert(0, [1, 2, 3], [4])
        cache.evict(int(is_on))
        assert cache._roots == {}
    cache.match([1, 2, 3], None, "asked for, not held")
    assert cache._roots == {}


def test_hits_are_counted_in_tokens() -> None:
    cache = PrefixCache(4)
    keep(cache, list(range(12)), [1, 2, 3])
    hold(cache, 1, list(range(9)))
    assert (cache.queried_tokens, cache.hit_tokens) == (12 + 9, 8)
