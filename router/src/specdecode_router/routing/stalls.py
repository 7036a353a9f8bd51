"""Whether a stream stalls: no event for 5 s, or for 20 of its median steps where that is longer."""

import statistics
from collections import deque
from typing import Final

LEAST_SECONDS: Final = 5.0
MEDIAN_STEPS: Final = 20
KEPT_STEPS: Final = 31


class StepTimes:
    """The times of a stream's events. Times are seconds of one monotonic clock."""

    __slots__ = ("_gaps_s", "_step_s", "latest_s")

    def __init__(self, now_s: float) -> None:
        self.latest_s = now_s
        self._step_s: float | None = None
        self._gaps_s: deque[float] = deque(maxlen=KEPT_STEPS)

    def step(self, now_s: float) -> None:
        """Note an event with tokens."""
        if self._step_s is not None:
            self._gaps_s.append(now_s - self._step_s)
        self._step_s = self.latest_s = now_s

    def beat(self, now_s: float) -> None:
        """Note that the engine is alive, without tokens."""
        self.latest_s = now_s

    def limit_s(self) -> float:
        """Return how long the stream may be silent."""
        median_s = statistics.median(self._gaps_s) if self._gaps_s else 0.0
        return max(LEAST_SECONDS, MEDIAN_STEPS * median_s)

    def is_stalled(self, now_s: float) -> bool:
        silent_s = now_s - self.latest_s
        return silent_s > LEAST_SECONDS and silent_s > self.limit_s()
