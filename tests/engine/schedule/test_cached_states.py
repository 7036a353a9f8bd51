"""Cached states of states against a naive model of the device: a state holds the text before it."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_engine.adaptive.policy import StaticPolicy
from specdecode_engine.batch.request import FinishReason, Request, SamplingParams
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.schedule.cached_states import CachedStates
from specdecode_engine.schedule.drafting import Drafting
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Scheduler

Text = tuple[int, ...]


def make_scheduler(
    cached_states: int, page_size: int, pages: int, chunk: int, least_tokens: int
) -> Scheduler:
    limits = Limits(
        max_running=3,
        max_queued=100,
        chunk_tokens=chunk,
        context_length=80,
        max_draft_tokens=1,
        page_size=page_size,
        pages=pages,
        cached_states=cached_states,
        cached_state_tokens=least_tokens,
    )
    return Scheduler(limits, Drafting(StaticPolicy(0)), PrefixCache(page_size))


class NaiveDevice:
    """States of requests and cached states, each of which is the text that it has read."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler = scheduler
        self.rng = rng
        self.states: dict[int, Text] = {}
        self.cached_states: dict[int, Text] = {}
        self.continued = 0

    def step(self) -> None:
        plan = self.scheduler.plan()
        for chunk in plan.chunks:
            if chunk.start == chunk.sequence.matched:
                self._open(chunk.sequence)
        if plan.chunks and self.rng.random() < 0.05:  # no memory: nothing else was computed
            self._interrupt([chunk.sequence for chunk in plan.chunks])
            return
        for chunk in plan.chunks:
            assert chunk.end > chunk.start
            self._read(chunk.sequence, chunk.start, chunk.end)
        for chunk in plan.chunks:
            if chunk.cached_state is not None:
                self.cached_states[chunk.cached_state] = self._state(chunk.sequence)
            chunk.sequence.computed = chunk.sequence.reusable = chunk.end
            if chunk.is_last:
                self._sample(chunk.sequence)
        for sequence in plan.decoding:
            self._read(sequence, sequence.computed, sequence.computed + 1)
            sequence.computed = sequence.reusable = sequence.computed + 1
            self._sample(sequence)
        self.scheduler.check()

    def _open(self, sequence: Sequence) -> None:
        assert sequence.req_index is not None
        text: Text = ()
        if sequence.cached_state is not None:
            text = self.cached_states[sequence.cached_state]
            self.continued += 1
        assert text == tuple(sequence.tokens[: sequence.matched])
        self.states[sequence.req_index] = text

    def _state(self, sequence: Sequence) -> Text:
        assert sequence.req_index is not None
        return self.states[sequence.req_index]

    def _read(self, sequence: Sequence, start: int, end: int) -> None:
        assert sequence.req_index is not None
        assert self._state(sequence) == tuple(sequence.tokens[:start])
        self.states[sequence.req_index] = tuple(sequence.tokens[:end])

    def _sample(self, sequence: Sequence) -> None:
        sequence.tokens.append(self.rng.randrange(2))
        if len(sequence.tokens) == sequence.total_limit:
            self.scheduler.finish(sequence, FinishReason.LENGTH)
        elif self.rng.random() < 0.05:
            self.scheduler.preempt(sequence)

    def _interrupt(self, sequences: list[Sequence]) -> None:
        """Leave cached states of the step unwritten, as a step that runs out of memory may."""
        self.scheduler.reduce_batch(tuple(sequences))
        self.scheduler.check()


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    page_size=st.sampled_from([1, 2, 4, 8]),
    cached_states=st.sampled_from([0, 1, 2, 5, 40]),
    chunk=st.integers(1, 40),
    least_tokens=st.sampled_from([1, 3, 10]),
    rows=st.integers(100, 300),
)
def test_a_state_is_continued_after_its_own_text(
    seed: int, page_size: int, cached_states: int, chunk: int, least_tokens: int, rows: int
) -> None:
    rng = random.Random(seed)
    scheduler = make_scheduler(cached_states, page_size, 2 + rows // page_size, chunk, least_tokens)
    device = NaiveDevice(scheduler, rng)
    stems = [tuple(rng.randrange(2) for _ in range(40)) for _ in range(2)]
    for number in range(14):
        prompt = (*rng.choice(stems)[: rng.randint(1, 40)], rng.randrange(2))
        sampling = SamplingParams(seed=0, max_tokens=rng.randint(1, 12))
        scheduler.add(Request(str(number), prompt, sampling))
        for _ in range(rng.randint(0, 6)):
            device.step()
    for _ in range(3000):
        if not scheduler.running and not scheduler.waiting:
            break
        device.step()
    assert not scheduler.running
    assert (device.continued == 0) >= (cached_states == 0)


def test_a_conversation_continues_from_the_end_of_its_prompt() -> None:
    scheduler = make_scheduler(cached_states=4, page_size=4, pages=60, chunk=16, least_tokens=8)
    device = NaiveDevice(scheduler, random.Random(1))
    prompt = tuple(range(30))
    first = scheduler.add(Request("first", prompt, SamplingParams(seed=0, max_tokens=1)))
    while scheduler.running or scheduler.waiting:
        device.step()
    again = (*first.tokens, 7, 8, 9)
    second = scheduler.add(Request("second", again, SamplingParams(seed=0, max_tokens=1)))
    device.step()
    assert second.matched == 28, "the last page boundary of the first prompt"
    assert scheduler.cache.hit_tokens == 28


def test_a_prefix_that_two_texts_have_shared_is_continued_by_the_third() -> None:
    """The first text does not know where others will part from it; the second finds out."""
    scheduler = make_scheduler(cached_states=4, page_size=4, pages=60, chunk=64, least_tokens=16)
    device = NaiveDevice(scheduler, random.Random(1))
    system, matched = tuple(range(26)), []
    for number in range(3):
        prompt = (*system, 100 + number, *range(20))
        sampling = SamplingParams(seed=0, max_tokens=1)
        sequence = scheduler.add(Request(str(number), prompt, sampling))
        while scheduler.running or scheduler.waiting:
            device.step()
        matched.append(sequence.matched)
    assert matched == [0, 0, 24]


@pytest.mark.parametrize(
    ("start", "end", "length", "saved", "found"),
    [
        (0, 30, 31, 0, 28),  # the chunk would end the prompt, which leaves a token to compute
        (0, 16, 60, 0, 16),
        (0, 7, 60, 0, None),  # less than the least tokens
        (16, 30, 60, 16, 28),
        (16, 20, 60, 16, None),
        (28, 31, 31, 28, None),  # the rest of a prompt
        (0, 8, 8, 0, None),  # a page boundary after which nothing is left
    ],
)
def test_a_chunk_ends_where_a_cached_state_is_due(
    start: int, end: int, length: int, saved: int, found: int | None
) -> None:
    cached_states = CachedStates(2, page_size=4, least_tokens=8)
    assert cached_states.boundary(start, end, length, saved) == found


def test_the_cached_state_used_least_recently_goes_first() -> None:
    cached_states = CachedStates(2, page_size=4, least_tokens=1)
    one, two = cached_states.save(page=5), cached_states.save(page=6)
    assert cached_states.pin(holder=1, page=5) == one
    cached_states.unpin(holder=1)
    assert cached_states.save(page=7) == two
    assert cached_states.usable([5, 6, 7, 8]) == 3
    assert cached_states.usable([5, 6]) == 1
    assert cached_states.usable([6]) == 0
    cached_states.check()


def test_a_cached_state_that_is_needed_stays() -> None:
    cached_states = CachedStates(1, page_size=4, least_tokens=1)
    cached_states.save(page=5)
    cached_states.pin(holder=1, page=5)
    assert cached_states.boundary(0, 8, 9, 0) is None, "there is no room for another one"
    cached_states.unpin(holder=1)
    assert cached_states.boundary(0, 8, 9, 0) == 8
    cached_states.save(page=6)
    assert cached_states.usable([5]) == 0
