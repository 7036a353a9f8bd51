"""The scheduler under random load: nothing leaks, everything ends, order is kept."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.batch.request import (
    FinishReason,
    QueueFull,
    Request,
    RequestTooLong,
    SamplingParams,
)
from specdecode_engine.schedule.drafting import Drafting
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.pages import PageAllocator
from specdecode_engine.schedule.prefill_pace import share_budget
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Scheduler


def make_scheduler(
    *, pages: int = 9, page_size: int = 4, running: int = 3, queued: int = 50, chunk: int = 5
) -> Scheduler:
    limits = Limits(
        max_running=running,
        max_queued=queued,
        chunk_tokens=chunk,
        context_length=64,
        max_draft_tokens=4,
        page_size=page_size,
        pages=pages,
    )
    return Scheduler(limits, Drafting(StaticPolicy(3)), PrefixCache(page_size))


def make_request(name: str, prompt: int, answer: int, order: int = 0) -> Request:
    sampling = SamplingParams(seed=0, max_tokens=answer)
    return Request(name, tuple(range(prompt)), sampling, queue_order=order)


def run_step(scheduler: Scheduler, emitted: int) -> None:
    """Pretend to compute a plan: every decoding sequence gets up to `emitted` tokens."""
    plan = scheduler.plan()
    for chunk in plan.chunks:
        assert chunk.start == chunk.sequence.computed
        chunk.sequence.computed = chunk.sequence.reusable = chunk.end
    ready = [chunk.sequence for chunk in plan.chunks if chunk.is_last]
    for sequence, count in [(s, 1) for s in ready] + [(s, emitted) for s in plan.decoding]:
        held_rows = len(sequence.pages) * scheduler.limits.page_size
        if sequence in plan.decoding:
            assert held_rows >= len(sequence.tokens) - 1 + scheduler.limits.max_draft_tokens
        room = sequence.total_limit - len(sequence.tokens)
        sequence.tokens += [7] * min(count, room)
        sequence.computed = sequence.reusable = len(sequence.tokens) - 1
        if len(sequence.tokens) == sequence.total_limit:
            scheduler.finish(sequence, FinishReason.LENGTH)
    scheduler.check()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 8)), min_size=1, max_size=12),
    page_size=st.sampled_from([1, 2, 4, 8]),
    rows=st.integers(32, 90),
    running=st.integers(1, 5),
    chunk=st.integers(1, 40),
    emitted=st.integers(1, 4),
)
def test_everything_ends_and_nothing_leaks(
    sizes: list[tuple[int, int]], page_size: int, rows: int, running: int, chunk: int, emitted: int
) -> None:
    scheduler = make_scheduler(
        pages=1 + rows // page_size, page_size=page_size, running=running, chunk=chunk
    )
    sequences = [
        scheduler.add(make_request(str(number), prompt, answer))
        for number, (prompt, answer) in enumerate(sizes)
    ]
    for _ in range(3000):
        if not scheduler.running and not scheduler.waiting:
            break
        run_step(scheduler, emitted)
    assert all(s.finish_reason is FinishReason.LENGTH for s in sequences)
    assert scheduler.available_pages == scheduler.pages.total


def test_memory_for_one_retracts_the_youngest_and_keeps_its_tokens() -> None:
    scheduler = make_scheduler(pages=9, page_size=4, running=2)
    old = scheduler.add(make_request("old", 4, 20))
    young = scheduler.add(make_request("young", 4, 20))
    while scheduler.preempted_total == 0:
        run_step(scheduler, 4)
    assert young.req_index is None
    assert old.req_index is not None
    assert len(young.tokens) > 4
    assert scheduler.waiting[0] is young


def test_memory_is_taken_from_the_last_in_the_order_of_the_queue() -> None:
    scheduler = make_scheduler(pages=9, page_size=4, running=2)
    late = scheduler.add(make_request("late", 4, 20, order=5))
    run_step(scheduler, 4)
    early = scheduler.add(make_request("early", 4, 20, order=-5))
    while scheduler.preempted_total == 0:
        run_step(scheduler, 4)
    assert (early.req_index is None, late.req_index is None) == (False, True)
    assert list(scheduler.waiting) == [late]


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    sizes=st.lists(
        st.tuples(st.integers(1, 20), st.integers(1, 8), st.integers(-2, 2)),
        min_size=1,
        max_size=12,
    ),
    running=st.integers(1, 5),
)
def test_everything_ends_with_priorities_too(
    sizes: list[tuple[int, int, int]], running: int
) -> None:
    scheduler = make_scheduler(running=running)
    for number, (prompt, answer, order) in enumerate(sizes):
        scheduler.add(make_request(str(number), prompt, answer, order))
    for _ in range(2000):
        if not (scheduler.waiting or scheduler.running):
            break
        run_step(scheduler, 2)
    assert not scheduler.waiting
    assert not scheduler.running
    assert scheduler.available_pages == scheduler.pages.total


def test_a_request_that_waits_for_memory_is_matched_again_only_when_some_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    matched = list[int]()
    match = PrefixCache.match

    def counted(cache, tokens, *more):
        matched.append(len(tokens))
        return match(cache, tokens, *more)

    monkeypatch.setattr(PrefixCache, "match", counted)
    scheduler = make_scheduler(pages=9, page_size=4)
    scheduler.add(make_request("runs", 4, 16))
    waits = scheduler.add(make_request("waits", 24, 4))
    while scheduler.waiting:
        assert matched.count(24) <= 1
        run_step(scheduler, 1)
    assert matched.count(24) == 2
    assert waits.req_index is not None


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    scheduler = make_scheduler(pages=9, page_size=4)
    with pytest.raises(RequestTooLong, match=r"20 prompt tokens and max_tokens 9 make 29.*28"):
        scheduler.add(make_request("long", 20, 9))
    scheduler.add(make_request("fits", 20, 8))


def test_a_full_queue_refuses_and_names_the_limit() -> None:
    scheduler = make_scheduler(running=1, queued=2)
    scheduler.add(make_request("runs", 4, 4))
    run_step(scheduler, 1)
    scheduler.add(make_request("waits", 4, 4))
    scheduler.add(make_request("waits too", 4, 4))
    with pytest.raises(QueueFull, match=r"1 requests are running.*2 are waiting \(limit 2\)"):
        scheduler.add(make_request("one too many", 4, 4))


def test_without_a_queue_a_free_engine_still_takes_a_request() -> None:
    scheduler = make_scheduler(running=1, queued=0)
    scheduler.add(make_request("first", 4, 4))
    with pytest.raises(QueueFull):
        scheduler.add(make_request("second", 4, 4))


@pytest.mark.parametrize(
    ("running", "queued", "count"), [(4, 4, 8), (64, 512, 513), (64, 512, 576), (16, 0, 8)]
)
def test_an_idle_engine_takes_as_many_requests_at_once_as_may_run_and_wait(
    running: int, queued: int, count: int
) -> None:
    scheduler = make_scheduler(running=running, queued=queued)
    for number in range(count):
        scheduler.add(make_request(str(number), 4, 4))
    assert len(scheduler.waiting) == count


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    running=st.integers(1, 4),
    queued=st.integers(0, 4),
    arrivals=st.lists(st.integers(0, 6), min_size=1, max_size=12),
)
def test_a_request_is_refused_only_when_all_slots_and_queue_places_are_taken(
    running: int, queued: int, arrivals: list[int]
) -> None:
    scheduler = make_scheduler(pages=100, running=running, queued=queued)
    for number, count in enumerate(arrivals):
        for index in range(count):
            present = len(scheduler.running) + len(scheduler.waiting)
            request = make_request(f"{number}-{index}", 4, 6)
            if present < running + queued:
                scheduler.add(request)
            else:
                with pytest.raises(QueueFull):
                    scheduler.add(request)
        run_step(scheduler, 2)


def test_the_oldest_prompt_gets_half_of_the_budget_and_the_shortest_the_rest() -> None:
    scheduler = make_scheduler(pages=60, running=4, chunk=6)
    for name, length in (("long", 30), ("longer", 32), ("short", 4)):
        scheduler.add(make_request(name, length, 2))
    shares = []
    for _ in range(3):
        plan = scheduler.plan()
        chunks = {c.sequence.request.request_id: (c.start, c.end) for c in plan.chunks}
        shares.append(chunks)
        for chunk in plan.chunks:
            chunk.sequence.computed = chunk.end
    assert shares == [
        {"long": (0, 3), "short": (0, 3)},
        {"long": (3, 6), "longer": (0, 2), "short": (3, 4)},
        {"long": (6, 9), "longer": (2, 5)},
    ]


@settings(deadline=None, derandomize=True)
@given(missing=st.lists(st.integers(1, 50), max_size=8), budget=st.integers(1, 60))
def test_a_budget_is_used_up_and_none_gets_more_than_it_needs(
    missing: list[int], budget: int
) -> None:
    shares = share_budget(missing, budget)
    assert sum(shares) == min(budget, sum(missing))
    assert all(0 <= share <= need for share, need in zip(shares, missing, strict=True))
    if missing:
        assert shares[0] >= min(missing[0], budget / 2)


def test_a_short_prompt_does_not_wait_for_long_ones_that_came_before() -> None:
    scheduler = make_scheduler(pages=100, running=8, chunk=8)
    for number in range(6):
        scheduler.add(make_request(f"long {number}", 40, 1))
    short = scheduler.add(make_request("short", 4, 1))
    run_step(scheduler, 1)
    assert short.finish_reason is FinishReason.LENGTH


def test_decoding_goes_on_while_a_long_prompt_is_computed_in_chunks() -> None:
    scheduler = make_scheduler(pages=40, chunk=4)
    short = scheduler.add(make_request("short", 3, 30))
    run_step(scheduler, 1)
    scheduler.add(make_request("long", 30, 2))
    for expected in range(2, 6):
        run_step(scheduler, 1)
        assert short.output_tokens == expected


def test_an_aborted_request_gives_everything_back_wherever_it_is() -> None:
    scheduler = make_scheduler(running=1)
    running = scheduler.add(make_request("running", 6, 4))
    waiting = scheduler.add(make_request("waiting", 6, 4))
    run_step(scheduler, 1)
    scheduler.finish(waiting, FinishReason.ABORT)
    scheduler.finish(running, FinishReason.ABORT)
    scheduler.check()
    assert scheduler.available_pages == scheduler.pages.total
    assert scheduler.plan().is_empty


def test_page_zero_is_never_handed_out_and_double_free_is_caught() -> None:
    pages = PageAllocator(4, 16)
    taken = pages.take(3)
    assert sorted(taken) == [1, 2, 3]
    pages.give_back(taken)
    with pytest.raises(KeyError):
        pages.give_back([1])
    assert (pages.pages_for(0), pages.pages_for(16), pages.pages_for(17)) == (0, 1, 2)
