"""Keeps garbage collections from stopping the event loop.

A full collection visits every object that is alive, and those are mainly the cached resources: with
300 engines it takes 225 ms. What reconciles leave is freed by reference counts, and cycles among
young objects by young collections, which are kept small. So few cycles become old that a full
collection a day is sufficient.
"""

import asyncio
import gc

YOUNG, MIDDLE = 2000, 5
"""Allocations between two collections of the youngest objects, and such collections between two of
the next generation: at most 12,000 objects, 2 ms."""
NEVER = 1_000_000
FULL_EVERY_S = 86_400.0


def freeze_heap() -> None:
    """Exempt everything that exists now from garbage collection, and limit what follows.

    Modules and the first list of all objects stay.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, MIDDLE, NEVER)


async def collect_forever(period_s: float = FULL_EVERY_S) -> None:
    """Collect garbage among all objects that are not frozen, rarely."""
    while True:
        await asyncio.sleep(period_s)
        gc.collect()
