"""The scheduler and the prefix cache together: what is matched, kept, evicted and counted."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.batch.request import FinishReason, Request, SamplingParams
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.schedule.drafting import Drafting
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Scheduler


def make_scheduler(
    *,
    pages: int = 40,
    page_size: int = 4,
    running: int = 3,
    chunk: int = 64,
    lookahead: int = 0,
    is_on: bool = True,
) -> Scheduler:
    limits = Limits(
        max_running=running,
        max_queued=100,
        chunk_tokens=chunk,
        context_length=64,
        max_draft_tokens=4,
        page_size=page_size,
        pages=pages,
    )
    return Scheduler(
        limits, Drafting(StaticPolicy(3)), PrefixCache(page_size, lookahead, is_on=is_on)
    )


def add(scheduler: Scheduler, prompt: list[int], answer: int = 4) -> Sequence:
    sampling = SamplingParams(seed=0, max_tokens=answer)
    return scheduler.add(Request(str(id(prompt)), tuple(prompt), sampling))


def run_step(scheduler: Scheduler, emitted: int = 1, lag: int = 0) -> None:
    """Pretend to compute a plan; the draft's rows end `lag` tokens before the target's."""
    plan = scheduler.plan()
    for chunk in plan.chunks:
        assert chunk.start == chunk.sequence.computed >= chunk.sequence.matched
        chunk.sequence.computed = chunk.end
        followed = chunk.end - max(lag, scheduler.cache.lookahead)
        chunk.sequence.reusable = max(chunk.sequence.reusable, followed)
    ready = [chunk.sequence for chunk in plan.chunks if chunk.is_last]
    for sequence, count in [(s, 1) for s in ready] + [(s, emitted) for s in plan.decoding]:
        room = sequence.total_limit - len(sequence.tokens)
        sequence.tokens += [7] * min(count, room)
        sequence.computed = len(sequence.tokens) - 1
        sequence.reusable = max(sequence.reusable, sequence.computed - lag)
        if len(sequence.tokens) == sequence.total_limit:
            scheduler.finish(sequence, FinishReason.LENGTH)
    scheduler.check()


def run_all(scheduler: Scheduler) -> None:
    while scheduler.running or scheduler.waiting:
        run_step(scheduler)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    page_size=st.sampled_from([1, 2, 4, 8]),
    rows=st.integers(32, 120),
    running=st.integers(1, 5),
    chunk=st.integers(1, 40),
    lookahead=st.sampled_from([0, 1]),
)
def test_shared_prefixes_aborts_and_little_memory_leak_nothing(
    seed: int, page_size: int, rows: int, running: int, chunk: int, lookahead: int
) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(
        pages=1 + rows // page_size,
        page_size=page_size,
        running=running,
        chunk=chunk,
        lookahead=lookahead,
    )
    stems = [[rng.randrange(3) for _ in range(rng.randrange(1, 18))] for _ in range(3)]
    alive: list[Sequence] = []
    for _ in range(80):
        if rng.random() < 0.5:
            prompt = rng.choice(stems) + [rng.randrange(3) for _ in range(rng.randrange(3))]
            alive.append(add(scheduler, prompt, rng.randrange(1, 8)))
        if alive and rng.random() < 0.15:
            victim = alive.pop(rng.randrange(len(alive)))
            if victim.finish_reason is None:
                scheduler.finish(victim, FinishReason.ABORT)
                scheduler.check()
        run_step(scheduler, rng.randint(1, 4), rng.choice([0, 0, 2, 9]))
    for _ in range(2000):
        if not scheduler.running and not scheduler.waiting:
            break
        run_step(scheduler)
    assert not scheduler.running
    assert not scheduler.waiting
    assert scheduler.available_pages == scheduler.pages.total
    assert scheduler.cache.idle_pages == scheduler.cache.pages


def test_a_second_request_computes_only_what_the_first_did_not() -> None:
    scheduler = make_scheduler()
    add(scheduler, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    run_all(scheduler)
    second = add(scheduler, [1, 2, 3, 4, 5, 6, 7, 8, 5])
    (chunk,) = scheduler.plan().chunks
    assert (chunk.start, chunk.end, second.matched) == (8, 9, 8)


def test_an_answer_is_found_by_the_request_that_goes_on_from_it() -> None:
    scheduler = make_scheduler()
    add(scheduler, [1, 2, 3], answer=10)  # the answers are all sevens
    run_all(scheduler)
    turn = add(scheduler, [1, 2, 3] + [7] * 10 + [4, 4])
    scheduler.plan()
    assert turn.matched == 12


def test_what_the_draft_has_not_followed_is_not_kept() -> None:
    """R6: rows of the draft that nobody computed are never shared."""
    scheduler = make_scheduler()
    add(scheduler, [1] * 4, answer=20)
    while scheduler.running or scheduler.waiting:
        run_step(scheduler, lag=9)
    assert scheduler.cache.pages == (4 + 20 - 1 - 9) // 4


def test_a_request_that_is_cached_needs_memory_only_for_what_is_new() -> None:
    """Nine pages in all; the first needs 7, five of which the second shares while it runs."""
    scheduler = make_scheduler(pages=10, running=2)
    first = add(scheduler, [1] * 20, answer=6)
    run_step(scheduler)
    scheduler.finish(first, FinishReason.ABORT)
    left = add(scheduler, [1] * 20 + [2], answer=3)
    right = add(scheduler, [1] * 20 + [3], answer=3)
    scheduler.plan()
    assert left.pages[:5] == right.pages[:5]
    assert scheduler.available_pages == 9 - 5 - 2 * 2
    scheduler.check()


def test_cached_pages_are_evicted_only_when_free_ones_run_out() -> None:
    scheduler = make_scheduler(pages=11, running=1)
    for token in (1, 2, 3):
        add(scheduler, [token] * 9, answer=1)
        run_all(scheduler)
    assert (scheduler.cache.pages, scheduler.cache.evicted_pages) == (6, 0)
    add(scheduler, [4] * 17, answer=1)
    scheduler.plan()
    assert scheduler.cache.evicted_pages == 2
    key = "", "", 0, 0
    assert len(scheduler.cache.match([1] * 9, None, key)[0]) == 0
    assert len(scheduler.cache.match([2] * 9, None, key)[0]) == 2


def test_a_retracted_sequence_finds_its_own_pages_again() -> None:
    scheduler = make_scheduler(pages=20, running=1)
    sequence = add(scheduler, [1] * 9, answer=20)
    for _ in range(5):
        run_step(scheduler)
    scheduler.preempt(sequence)
    scheduler.check()
    tokens = len(sequence.tokens)
    scheduler.plan()
    assert sequence.matched == (tokens - 1) // 4 * 4 > 8


def test_an_aborted_prompt_leaves_the_pages_that_were_computed() -> None:
    scheduler = make_scheduler(chunk=6)
    sequence = add(scheduler, list(range(20)))
    run_step(scheduler)
    scheduler.finish(sequence, FinishReason.ABORT)
    scheduler.check()
    assert scheduler.cache.pages == 1
    again = add(scheduler, list(range(20)))
    scheduler.finish(add(scheduler, [9]), FinishReason.ABORT)  # still waiting: nothing to keep
    scheduler.plan()
    assert again.matched == 4


def test_switched_off_every_page_is_free_again() -> None:
    scheduler = make_scheduler(is_on=False)
    for _ in range(2):
        sequence = add(scheduler, [1] * 20)
        run_all(scheduler)
        assert sequence.matched == 0
    assert scheduler.pages.free == scheduler.pages.total
