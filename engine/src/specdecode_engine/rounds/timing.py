"""How long a round took where it was computed: by the host's clock, or by events on a device."""

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


class Stopwatch:
    """Starts measurements on one device.

    Args:
        device: what the rounds compute on.
        clock: seconds, monotonic; used where the host computes.
    """

    def __init__(self, device: torch.device, clock: Callable[[], float]) -> None:
        self._is_cuda = device.type == "cuda"
        self._clock = clock

    def start(self) -> Timing:
        """Begin to measure."""
        return _DeviceTiming() if self._is_cuda else _HostTiming(self._clock)


class _HostTiming:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._started_s = clock()
        self._seconds = 0.0

    def stop(self) -> None:
        self._seconds = self._clock() - self._started_s

    def seconds(self) -> float:
        return self._seconds


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


def _event() -> "torch.cuda.Event":
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
