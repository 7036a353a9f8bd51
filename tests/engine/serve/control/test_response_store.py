"""The store of responses: within its bytes, oldest out first, an hour at most, one owner each."""

import random
import tracemalloc
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from specdecode_api.response_names import (
    has_issued,
    name_in_item,
    name_in_response,
    named_for,
    new_key,
    new_name,
)
from specdecode_engine.serve.control.response_store import (
    MAX_AGE_SECONDS,
    RECORD_BYTES,
    ResponseStore,
)

OWN, OTHER = b"a" * 32, b"b" * 32
ROOM = 3 * (RECORD_BYTES + 10)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def filled(max_bytes: int = ROOM) -> tuple[ResponseStore, Clock, list[str]]:
    """A store with three responses of ten bytes."""
    clock = Clock()
    store = ResponseStore(max_bytes, clock)
    names = [store.new_name() for _ in range(3)]
    for name in names:
        assert store.put(name, OWN, b"12345", b"67890", 1)
        clock.now_s += 1
    return store, clock, names


def test_the_oldest_response_makes_room() -> None:
    store, _, names = filled()
    assert store.num_bytes == ROOM
    assert store.put("new", OTHER, b"12345678901", b"", 0)
    assert [store.get(name, OWN) is None for name in names] == [True, True, False]
    assert (len(store), store.get("new", OTHER) is not None) == (2, True)


def test_a_response_larger_than_the_store_changes_nothing() -> None:
    store, _, names = filled()
    assert not store.put("new", OWN, b"x" * (ROOM - RECORD_BYTES + 1), b"", 0)
    assert all(store.get(name, OWN) for name in names)
    assert store.put("new", OWN, b"x" * (ROOM - RECORD_BYTES), b"", 0)
    assert (len(store), store.num_bytes) == (1, ROOM)


def test_a_response_expires_after_an_hour() -> None:
    store, clock, names = filled()
    clock.now_s = 1000.0 + MAX_AGE_SECONDS
    assert [store.get(name, OWN) is None for name in names] == [True, False, False]
    assert not store.remove(names[0], OWN)
    store.expire()
    assert len(store) == 2


def test_only_the_owner_finds_a_response() -> None:
    store, _, names = filled()
    for name in names:
        assert store.get(name, OTHER) is None
        assert not store.remove(name, OTHER)
    assert not store.remove(None, OWN)
    assert store.remove(names[1], OWN)
    assert (len(store), store.get(names[1], OWN)) == (2, None)


def test_responses_of_removed_owners_are_forgotten() -> None:
    store, _, names = filled(2 * ROOM)
    assert store.put("new", OTHER, b"1", b"2", 1)
    store.keep_owners({OWN, OTHER})
    assert len(store) == 4
    store.keep_owners({OTHER})
    assert (len(store), store.num_bytes) == (1, RECORD_BYTES + 2)
    assert all(store.get(name, OWN) is None for name in names)


def test_a_name_that_is_stored_again_replaces_its_response() -> None:
    store, _, names = filled()
    assert store.put(names[0], OTHER, b"1234567890", b"", 0)
    assert (len(store), store.num_bytes) == (3, ROOM)
    assert store.get(names[0], OWN) is None


def test_memory_stays_within_the_bytes_under_100000_responses() -> None:
    limit = 8 * 2**20
    generator, ticks = random.Random(5), count()
    store = ResponseStore(limit, lambda: next(ticks) / 1000)
    owners = [generator.randbytes(32) for _ in range(8)]
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        most = 0
        for number in range(100_000):
            size = generator.choice((0, 40, 500, 3000))
            text, items = bytes(size), bytes(generator.randrange(300))
            assert store.put(store.new_name(), owners[number % 8], text, items, 1)
            assert store.num_bytes <= limit
            if number % 64 == 0:
                most = max(most, tracemalloc.get_traced_memory()[0] - before)
    finally:
        tracemalloc.stop()
    assert limit // 2 < most <= limit
    assert store.num_bytes > limit - 2**13
    store.clear()
    assert (len(store), store.num_bytes) == (0, 0)


def test_a_name_leads_to_the_key_that_it_was_made_with() -> None:
    keys = [new_key() for _ in range(16)]
    for key in keys:
        name = new_name(key)
        assert [has_issued(each, name) for each in keys] == [each is key for each in keys]
        assert name_in_response(f"resp_{name}") == name
        assert name_in_item(f"msg_{name}_12") == name_in_item(f"fco_{name}_i3") == name
        assert name_in_response(f"msg_{name}_12") is name_in_response(f"resp_{name}_0") is None
        assert name_in_item(f"resp_{name}_0") is name_in_item(f"msg_{name}") is None
        assert named_for(keys[0], name[:32]) == name or key is not keys[0]


@given(st.text())
def test_no_text_is_taken_for_a_name(text: str) -> None:
    assert not has_issued(b"k" * 32, text)
    assert name_in_response(text) is name_in_item(text) is None
