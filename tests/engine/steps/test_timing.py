"""Measurements of steps on the host."""

from collections.abc import Iterator

import torch

from specdecode_engine.steps.timing import Stopwatch


def test_a_gap_begins_at_the_end_of_the_measurement_before() -> None:
    times: Iterator[float] = iter([0.0, 1.0, 1.5, 4.0, 5.0, 6.0, 9.0])
    stopwatch = Stopwatch(torch.device("cpu"), lambda: next(times), lambda: 0.0)
    first = stopwatch.start()
    first.stop()
    second = stopwatch.start()
    second.stop()
    assert (first.gap_s(), first.seconds()) == (0.0, 1.0)
    assert (second.gap_s(), second.seconds()) == (3.0, 2.5)
    interrupted = stopwatch.start()
    after = stopwatch.start()
    after.stop()
    assert interrupted.gap_s() == after.gap_s() == 0.0
