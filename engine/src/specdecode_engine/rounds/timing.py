"""How long a round took where it was computed: by the host's clock, or by events on a device."""

import time
from collections.abc import Callable
from typing import Protocol

import torch


class Timing(Protocol):
    """One measurement under way."""

    def stop(self) -> None:
        """Say that everything to be measured has been launched."""
        ...

    def seconds(self) -> float:
        """How long it took; to be asked once it is known to have finished."""
        ...

    def busy_seconds(self) -> float:
        """How long it was worked on: what it costs, whatever else keeps the machine busy."""
        ...


class Stopwatch:
    """Starts measurements on one device.

    Args:
        device: what the rounds compute on.
        clock: seconds, monotonic; used where the host computes.
        busy_clock: seconds that this thread was running, so that a neighbour that takes the
            processor away does not look like a dear round.
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
        """Begin to measure."""
        return _DeviceTiming() if self._is_cuda else _HostTiming(self._clock, self._busy_clock)


class Share:
    """The part of a measurement that falls to some of what was computed together."""

    def __init__(self, whole: Timing, part: float) -> None:
        self._whole, self._part = whole, part

    def stop(self) -> None:
        """Do nothing: the whole is stopped once."""

    def seconds(self) -> float:
        """The part of the time that it took."""
        return self._part * self._whole.seconds()

    def busy_seconds(self) -> float:
        """The part of the time that it was worked on."""
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
