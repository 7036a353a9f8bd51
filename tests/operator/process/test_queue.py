"""The queue: each key waits once, is worked on once at a time, and comes back if needed."""

import asyncio
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_operator.process.queue import FIRST_RETRY_S, LAST_RETRY_S, Queue


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def queue(clock):
    return Queue(clock, random.Random(1))


def test_keys_come_in_the_order_of_adding_and_once(queue):
    for key in "abacb":
        queue.add(key)
    assert queue.depth() == 3
    assert [queue.take() for _ in range(4)] == ["a", "b", "c", None]


def test_a_key_is_worked_on_by_one_worker_at_a_time(queue):
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == "a"


def test_what_came_while_working_is_worked_on_once_more_and_no_more(queue):
    queue.add("a")
    queue.take()
    for _ in range(5):
        queue.add("a")
    queue.done("a")
    assert queue.take() == "a"
    queue.done("a")
    assert queue.take() is None


def test_a_clean_key_does_not_come_back(queue):
    queue.add("a")
    queue.take()
    queue.done("a")
    assert queue.take() is None


def test_a_delayed_key_comes_when_it_is_due(queue, clock):
    queue.add_after("a", 10)
    clock.now += 9.9
    assert queue.take() is None
    clock.now += 0.2
    assert queue.take() == "a"


def test_of_several_delays_the_earliest_counts_and_only_once(queue, clock):
    queue.add_after("a", 30)
    queue.add_after("a", 10)
    queue.add_after("a", 20)
    clock.now += 11
    assert queue.take() == "a"
    queue.done("a")
    clock.now += 100
    assert queue.take() is None


def test_a_delay_that_ends_while_the_key_is_worked_on_is_not_lost(queue, clock):
    queue.add("a")
    queue.take()
    queue.add_after("a", 1)
    clock.now += 2
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == "a"


def test_back_off_doubles_up_to_a_bound_and_is_forgotten(queue, clock):
    delays = []
    for _ in range(20):
        delays.append(queue.retry("a"))
        clock.now += delays[-1]
        assert queue.take() == "a"
        queue.done("a")
    for attempt, delay_s in enumerate(delays):
        ceiling_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2**attempt)
        assert ceiling_s / 2 <= delay_s <= ceiling_s
    queue.forget("a")
    assert queue.retry("a") <= FIRST_RETRY_S


def test_a_failing_key_holds_nobody_up(queue, clock):
    queue.add("poison")
    queue.add("good")
    queue.take()
    queue.retry("poison")
    queue.done("poison")
    assert queue.take() == "good"


def test_ages_are_those_of_the_longest_waiting(queue, clock):
    assert queue.oldest_s() == 0
    queue.add("a")
    clock.now += 5
    queue.add("b")
    assert queue.oldest_s() == 5
    queue.take()
    assert queue.oldest_s() == 0


async def test_get_waits_for_an_addition_and_for_a_delay():
    loop = asyncio.get_running_loop()
    queue: Queue[str] = Queue(loop.time, random.Random(1))
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await waiting == "a"
    queue.add_after("b", 0.01)
    assert await queue.get() == "b"


async def test_one_of_several_waiting_workers_gets_a_key():
    queue: Queue[str] = Queue(asyncio.get_running_loop().time, random.Random(1))
    workers = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    for key in "ab":
        queue.add(key)
    done, pending = await asyncio.wait(workers, timeout=1, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:
        more, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        done |= more
    assert {task.result() for task in done} == {"a", "b"}
    assert len(pending) == 1
    for task in pending:
        task.cancel()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abc")),
        st.tuples(st.just("add_after"), st.sampled_from("abc")),
        st.tuples(st.just("retry"), st.sampled_from("abc")),
        st.tuples(st.just("take"), st.none()),
        st.tuples(st.just("done"), st.none()),
        st.tuples(st.just("wait"), st.none()),
    ),
    max_size=60,
)


@settings(deadline=None, derandomize=True)
@given(STEPS)
def test_no_order_of_calls_loses_a_key_or_gives_it_twice(steps):
    clock = Clock()
    queue: Queue[str] = Queue(clock, random.Random(1))
    owed: set[str] = set()  # keys that somebody asked for and nobody has taken since
    delayed: set[str] = set()  # keys that were asked for later as well: they may come again
    working = []
    for step, key in steps:
        if step == "take":
            taken = queue.take()
            if taken is not None:
                assert taken not in working
                assert taken in owed | delayed
                owed.discard(taken)
                working.append(taken)
        elif step == "done":
            if working:
                queue.done(working.pop(0))
        elif step == "wait":
            clock.now += 1
        else:
            owed.add(key)
            if step != "add":
                delayed.add(key)
            arguments = (key, 1.5) if step == "add_after" else (key,)
            getattr(queue, step)(*arguments)
    while working:
        queue.done(working.pop())
    clock.now += LAST_RETRY_S
    while (taken := queue.take()) is not None:
        owed.discard(taken)
        queue.done(taken)
    assert owed == set()
