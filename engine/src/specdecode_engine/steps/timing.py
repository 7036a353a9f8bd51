"""Measures the time of a step on its device: by the host's clock, or by CUDA events."""

import time
from collections.abc import Callable
from typing import Protocol

import torch


class Timing(Protocol):
    """One measurement in progress."""

    def stop(self) -> None:
        """Mark the end: everything to be measured has been launched."""
        ...

    def seconds(self) -> float:
        """Wall time; valid once the result of the step has been collected."""
        ...

    def busy_seconds(self) -> float:
        """Time spent computing, without the time that other processes used the CPU."""
        ...


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
        return _DeviceTiming() if self._is_cuda else _HostTiming(self._clock, self._busy_clock)


class Share:
    """The share of a measurement that falls to one part of a forward."""

    def __init__(self, whole: Timing, part: float) -> None:
        self._whole, self._part = whole, part

    def stop(self) -> None:
        """Do nothing: the whole is stopped once."""

    def seconds(self) -> float:
        """The share of the wall time."""
        return self._part * self._whole.seconds()

    def busy_seconds(self) -> float:
        """The share of the computing time."""
        return self._part * self._whole.busy_seconds()


class _HostTiming:
    def __init__(self, clock: Callable[[], float], busy_clock: Callable[[], float]) -> None:
        self._clock, self._busy_clock = clock, busy_clock
        self._started_s, self._busy_started_s = clock(), busy_clock()
        self._seconds = self._busy_seconds = 0.0

    def stop(self) -> None:
        self._seconds = self._clock() - self._started_s
        self._busy_seconds = self._busy_clock() - self._busy_started_s

    def seconds(self) -> float:
        return self._seconds

    def busy_seconds(self) -> float:
        return self._busy_seconds


class _DeviceTiming:
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
