"""The mean by batch size, with the table of today's defaults, which has depth 0."""

from bench.simulation.policy.rivals.by_batch import EmaByBatch


def ema_zero_step() -> EmaByBatch:
    """Build it."""
    return EmaByBatch(
        {
            1: ((1, 3, 5, 7), -0.25),
            8: ((0, 1, 3), 0.0),
            32: ((0, 1), 0.0),
            64: ((0,), 0.0),
        }
    )
