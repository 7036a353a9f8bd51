"""Microseconds to find, take up, extend and keep a prefix; the cache alone, without a model."""

import random
import statistics
import time
from dataclasses import asdict, dataclass

from specdecode_engine.schedule.pages import PageAllocator
from specdecode_engine.schedule.prefix_cache import PrefixCache

PROMPT, SHARED, VOCAB = 4096, 3584, 128_000


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians over all repeats; `total_us` is match, take up, allocate, evict and insert."""

    page_size: int
    lookahead: int
    branches: int
    match_us: float
    total_us: float


def measure(page_size: int, lookahead: int, branches: int, repeats: int = 200) -> dict[str, object]:
    """Time prompts that share most of their tokens, `branches` others having shared less before."""
    rng = random.Random(0)
    cache = PrefixCache(page_size, lookahead)
    # Ten prompts fit; the rest is evicted.
    allocator = PageAllocator(10 * (PROMPT // page_size + 1), page_size)
    shared = rng.choices(range(VOCAB), k=SHARED)
    for _ in range(branches):
        _serve(cache, allocator, shared[: rng.randrange(SHARED)] + rng.choices(range(VOCAB), k=64))
    _serve(cache, allocator, shared + [0] * (PROMPT + 1 - SHARED))
    times = []
    for _ in range(repeats):
        prompt = shared + rng.choices(range(VOCAB), k=PROMPT + 1 - SHARED)
        times.append(_serve(cache, allocator, prompt))
    cache.check()
    matches, totals = zip(*times, strict=True)
    return asdict(
        Timing(
            page_size,
            lookahead,
            branches,
            round(statistics.median(matches) * 1e6, 1),
            round(statistics.median(totals) * 1e6, 1),
        )
    )


def _serve(cache: PrefixCache, allocator: PageAllocator, prompt: list[int]) -> tuple[float, float]:
    started = time.perf_counter()
    pages, _, last = cache.match(prompt)
    matched = time.perf_counter()
    cache.hold(0, prompt, pages, last)
    count = (len(prompt) - 1) // allocator.page_size - len(pages)
    if count > allocator.free:
        allocator.give_back(cache.evict(count - allocator.free))
    allocator.give_back(cache.insert(0, prompt, pages + allocator.take(count))[0])
    return matched - started, time.perf_counter() - started
