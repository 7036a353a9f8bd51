"""The first published adaptive policy: one mean for all batch sizes, depths 1, 3 and 7."""

from bench.simulation.policy.rivals.by_batch import EmaByBatch


def ema_v1() -> EmaByBatch:
    """Build it."""
    return EmaByBatch({1: ((1, 3, 7), -0.25)})
