"""Garbage collections of the operator: small ones, and nothing is visited twice."""

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from specdecode_operator.heap import MIDDLE, NEVER, YOUNG, collect_forever, freeze_heap


class Knot:
    """An object in a cycle, which only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def own_limits() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_collections_of_all_objects_do_not_begin_automatically() -> None:
    kept: list[list[int]] = [[] for _ in range(100)]
    freeze_heap()
    assert gc.get_threshold() == (YOUNG, MIDDLE, NEVER)
    assert gc.get_freeze_count() > len(kept)


async def test_new_cycles_are_collected_again_and_again_and_survivors_are_frozen() -> None:
    freeze_heap()
    kept: list[list[list[int]]] = []
    collecting = asyncio.create_task(collect_forever(0.0))
    try:
        async with asyncio.timeout(60):
            for _ in range(2):
                knot = weakref.ref(Knot())
                before = gc.get_freeze_count()
                kept.append([[] for _ in range(1000)])
                while knot() is not None or gc.get_freeze_count() < before + 900:
                    await asyncio.sleep(0)
    finally:
        collecting.cancel()
    assert knot() is None
