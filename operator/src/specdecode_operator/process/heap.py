"""Keeps garbage collections from stopping the event loop.

A collection of all objects visits mainly the cached resources: with 300 engines it takes 335 ms.
They contain no cycles, and reference counts free them. So whatever survives a collection of the
oldest generation is frozen at once: that generation never holds more than what a few collections of
the middle one have added, however many objects appear at once, and no collection visits more than
`YOUNG` · (`MIDDLE` + 1) · (`OLD` + 1) objects and a quarter of those that survived the last one,
which takes about a millisecond. A cycle that was in use while it was frozen, such as a running
task, stays in memory until the heap is unfrozen once a day.
"""

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

YOUNG, MIDDLE, OLD = 1000, 3, 2
"""Allocations between two collections of the youngest objects; such collections between two of the
next generation; those between two of the oldest one."""
OLDEST = 2
"""Number of the oldest generation."""
WHOLE_S = 24 * 3600.0
"""Between two collections that visit all objects."""


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Exempt what exists, and what survives a collection later, from collections until the end."""
    before = gc.get_threshold()
    _freeze_all()
    gc.set_threshold(YOUNG, MIDDLE, OLD)
    gc.callbacks.append(_freeze_survivors)
    try:
        yield
    finally:
        gc.callbacks.remove(_freeze_survivors)
        gc.set_threshold(*before)
        gc.unfreeze()


async def collect_forever(period_s: float = WHOLE_S) -> None:
    """Collect everything once a period, until cancelled; within `frozen_heap`."""
    while True:
        await asyncio.sleep(period_s)
        _freeze_all()


def _freeze_all() -> None:
    """Collect all garbage, and freeze the rest.

    Collected twice: the garbage collector defers collections of the oldest generation until it has
    grown by a quarter of what the latest one left, which is nothing after the second one.
    """
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    gc.collect()


def _freeze_survivors(phase: str, info: dict[str, Any]) -> None:
    """Freeze what is left after a collection of the oldest generation."""
    if phase == "stop" and info["generation"] == OLDEST:
        gc.freeze()
