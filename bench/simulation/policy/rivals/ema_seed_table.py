"""The mean by batch size, with the table that it was first published with: never depth 0."""

from bench.simulation.policy.rivals.by_batch import EmaByBatch


def ema_seed_table() -> EmaByBatch:
    """Build it."""
    return EmaByBatch({1: ((1, 3, 7), -0.25), 8: ((1, 3), -0.25), 32: ((1,), -0.25)})
