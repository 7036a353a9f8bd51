"""Garbage collections of the operator: small ones, and nothing is visited twice."""

import asyncio
import gc
import json
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from specdecode_operator import heap
from specdecode_operator.heap import MIDDLE, OLD, OLDEST, YOUNG, collect_forever, freeze_heap

MOST_VISITED = 2 * YOUNG * (MIDDLE + 1) * (OLD + 1)


class Knot:
    """An object in a cycle, which only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def own_limits() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.callbacks.remove(heap._freeze_survivors)
    gc.unfreeze()
    gc.set_threshold(*before)


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
    freeze_heap()
    visited.clear()
    new = manifests(20_000)
    assert len(known) + len(new) == 40_000
    assert visited
    assert max(visited) <= MOST_VISITED


def test_survivors_are_frozen_without_waiting() -> None:
    freeze_heap()
    before = gc.get_freeze_count()
    new = manifests(20_000)
    assert gc.get_freeze_count() - before > 8 * len(new)


def test_new_cycles_are_collected_while_objects_appear() -> None:
    freeze_heap()
    knots = [weakref.ref(Knot()) for _ in range(10)]
    kept = manifests(5_000)
    assert kept
    assert [knot() for knot in knots] == [None] * 10


def test_cycles_that_were_in_use_are_collected_when_the_heap_is_unfrozen() -> None:
    freeze_heap()
    knot = Knot()
    gc.collect(OLDEST)
    frozen = weakref.ref(knot)
    del knot
    gc.collect(OLDEST)
    assert frozen() is not None
    freeze_heap()
    assert frozen() is None


async def test_everything_is_collected_once_a_period() -> None:
    freeze_heap()
    knot = Knot()
    gc.collect(OLDEST)
    frozen = weakref.ref(knot)
    del knot
    collecting = asyncio.create_task(collect_forever(0.0))
    try:
        async with asyncio.timeout(60):
            while frozen() is not None:
                await asyncio.sleep(0)
    finally:
        collecting.cancel()


def test_the_heap_is_frozen_by_one_callback() -> None:
    freeze_heap()
    freeze_heap()
    assert gc.callbacks.count(heap._freeze_survivors) == 1
    assert gc.get_threshold() == (YOUNG, MIDDLE, OLD)
