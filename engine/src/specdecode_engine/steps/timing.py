"""Measures the time of a step on its device: by the host's clock, or by CUDA events."""

import time
from collections.abc import Callable

import torch


class HostTiming:
    """A measurement by the host's clocks, which starts when it is made."""

    def __init__(self, clock: Callable[[], float], busy_clock: Callable[[], float]) -> None:
        self._clock, self._busy_clock = clock, busy_clock
        self._started_s, self._busy_started_s = clock(), busy_clock()
        self._seconds = self._busy_seconds = 0.0

    def stop(self) -> None:
        """Mark the end: everything to be measured has been launched."""
        self._seconds = self._clock() - self._started_s
        self._busy_seconds = self._busy_clock() - self._busy_started_s

    def seconds(self) -> float:
        """Wall time; valid once the result of the step has been collected."""
        return self._seconds

    def busy_seconds(self) -> float:
        """Time spent computing, without the time that other processes used the CPU."""
        return self._busy_seconds


class DeviceTiming:
    """A measurement by events on a CUDA stream; the same methods."""

    def __init__(self) -> None:
        self._started = _event()
        self._stopped = _event()
        self._started.record()

    def stop(self) -> None:
        self._stopped.record()

    def seconds(self) -> float:
        self._stopped.synchronize()
        return float(self._started.elapsed_time(self._stopped)) / 1000

    def busy_seconds(self) -> float:
        return self.seconds()


def _event() -> "torch.cuda.Event":
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


Timing = HostTiming | DeviceTiming


class Stopwatch:
    """Starts measurements on one device.

    Args:
        device: what the steps compute on.
        clock: seconds, monotonic; used where the host computes.
        busy_clock: seconds that this thread was running, so that a step does not look expensive
            because another process used the CPU.
    """

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float],
        busy_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._is_cuda = device.type == "cuda"
        self._clock = clock
        self._busy_clock = busy_clock

    def start(self) -> Timing:
        """Start a measurement."""
        return DeviceTiming() if self._is_cuda else HostTiming(self._clock, self._busy_clock)
