"""Measures the time of a step on its device: by the host's clock, or by CUDA events."""

import time
from collections.abc import Callable

import torch

from specdecode_engine.ranks import ALONE, Ranks


class HostTiming:
    """A measurement by the host's clocks, which starts when it is made.

    Args:
        ended_s: when the measurement before ended, if there was one.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        busy_clock: Callable[[], float],
        ended_s: float | None = None,
    ) -> None:
        self.ended_s: float | None = None
        self._clock, self._busy_clock, self._before_s = clock, busy_clock, ended_s
        self._started_s, self._busy_started_s = clock(), busy_clock()
        self._seconds = self._busy_seconds = 0.0

    def stop(self) -> None:
        """Mark the end: everything to be measured has been launched."""
        self.ended_s = self._clock()
        self._seconds = self.ended_s - self._started_s
        self._busy_seconds = self._busy_clock() - self._busy_started_s

    def seconds(self) -> float:
        """Wall time; valid once the result of the step has been collected."""
        return self._seconds

    def busy_seconds(self) -> float:
        """Time spent computing, without the time that other processes used the CPU."""
        return self._busy_seconds

    def gap_s(self) -> float:
        """Wall time from the end of the measurement before to that of this one; 0 if unknown."""
        if self._before_s is None or self.ended_s is None:
            return 0.0
        return self.ended_s - self._before_s


class DeviceTiming:
    """A measurement by events on a CUDA stream; the same methods.

    Args:
        ended: event at the end of the measurement before, if there was one.
    """

    def __init__(self, ended: "torch.cuda.Event | None" = None) -> None:
        self.ended: torch.cuda.Event | None = None
        self._before = ended
        self._started = _event()
        self._stopped = _event()
        self._started.record()

    def stop(self) -> None:
        self._stopped.record()
        self.ended = self._stopped

    def seconds(self) -> float:
        self._stopped.synchronize()
        return float(self._started.elapsed_time(self._stopped)) / 1000

    def busy_seconds(self) -> float:
        return self.seconds()

    def gap_s(self) -> float:
        if self._before is None:
            return 0.0
        self._stopped.synchronize()
        return float(self._before.elapsed_time(self._stopped)) / 1000


def _event() -> "torch.cuda.Event":
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class SharedTiming:
    """The leader's measurement, by which every rank decides alike; the same methods.

    Args:
        timing: that of this rank.
    """

    def __init__(self, timing: HostTiming | DeviceTiming, ranks: Ranks) -> None:
        self._timing = timing
        self._ranks = ranks
        self._values: tuple[float, ...] = ()

    def stop(self) -> None:
        self._timing.stop()

    def seconds(self) -> float:
        return self._read()[0]

    def busy_seconds(self) -> float:
        return self._read()[1]

    def gap_s(self) -> float:
        return self._read()[2]

    def _read(self) -> tuple[float, ...]:
        if not self._values:
            own = self._timing
            self._values = self._ranks.agree(own.seconds(), own.busy_seconds(), own.gap_s())
        return self._values


Timing = HostTiming | DeviceTiming | SharedTiming


class Stopwatch:
    """Starts measurements on one device.

    Args:
        device: what the steps compute on.
        clock: seconds, monotonic; used where the host computes.
        busy_clock: seconds that this thread was running, so that a step does not look expensive
            because another process used the CPU.
        ranks: which all decide by the measurements.
    """

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float],
        busy_clock: Callable[[], float] = time.thread_time,
        ranks: Ranks = ALONE,
    ) -> None:
        self._ranks = ranks
        self._is_cuda = device.type == "cuda"
        self._clock = clock
        self._busy_clock = busy_clock
        self._latest: HostTiming | DeviceTiming | None = None

    def start(self) -> Timing:
        """Start a measurement."""
        before = self._latest
        if self._is_cuda:
            ended = before.ended if isinstance(before, DeviceTiming) else None
            self._latest = DeviceTiming(ended)
        else:
            ended_s = before.ended_s if isinstance(before, HostTiming) else None
            self._latest = HostTiming(self._clock, self._busy_clock, ended_s)
        return self._latest if self._ranks.size == 1 else SharedTiming(self._latest, self._ranks)
