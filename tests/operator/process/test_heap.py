"""Garbage collections of the operator: small ones, and nothing is visited twice."""

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from specdecode_operator.process.heap import (
    MIDDLE,
    OLD,
    OLDEST,
    YOUNG,
    collect_forever,
    frozen_heap,
)

MOST_VISITED = 2 * YOUNG * (MIDDLE + 1) * (OLD + 1)


class Knot:
    """An object in a cycle, which only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def frozen() -> Iterator[None]:
    with frozen_heap():
        yield


@pytest.fixture
def visited() -> Iterator[list[int]]:
    """Objects that each collection visits."""
    found: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            generations = range(info["generation"] + 1)
            found.append(sum(len(gc.get_objects(each)) for each in generations))

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def manifests(count: int) -> list[Any]:
    """Parsed objects of a list, with some ten containers each."""
    text = json.dumps({"metadata": {"labels": {}}, "spec": [{"env": [{}]} for _ in range(3)]})
    return [json.loads(text) for _ in range(count)]


def test_no_collection_visits_many_objects_however_many_appear_at_once(visited: list[int]) -> None:
    known = manifests(20_000)
    with frozen_heap():
        visited.clear()
        new = manifests(20_000)
    assert len(known) + len(new) == 40_000
    assert visited
    assert max(visited) <= MOST_VISITED


@pytest.mark.usefixtures("frozen")
def test_survivors_are_frozen_without_waiting() -> None:
    before = gc.get_freeze_count()
    new = manifests(20_000)
    assert gc.get_freeze_count() - before > 8 * len(new)


@pytest.mark.usefixtures("frozen")
def test_new_cycles_are_collected_while_objects_appear() -> None:
    knots = [weakref.ref(Knot()) for _ in range(10)]
    kept = manifests(5_000)
    assert kept
    assert [knot() for knot in knots] == [None] * 10


@pytest.mark.usefixtures("frozen")
async def test_everything_is_collected_once_a_period() -> None:
    knot = Knot()
    gc.collect(OLDEST)
    in_use = weakref.ref(knot)
    del knot
    gc.collect(OLDEST)
    assert in_use() is not None  # frozen while it was in use
    collecting = asyncio.create_task(collect_forever(0.0))
    try:
        async with asyncio.timeout(60):
            while in_use() is not None:
                await asyncio.sleep(0)
    finally:
        collecting.cancel()


def test_nothing_stays_frozen_after_the_block() -> None:
    """Objects that another test froze would be unknown to the garbage collector in later ones."""
    before = gc.get_threshold(), list(gc.callbacks)
    with frozen_heap():
        assert gc.get_threshold() == (YOUNG, MIDDLE, OLD)
        assert gc.get_freeze_count() > 0
    assert (gc.get_threshold(), gc.callbacks) == before
    assert gc.get_freeze_count() == 0
