"""Whether an engine may be used: circuit breaking after failures, slow start after a start."""

from dataclasses import dataclass
from typing import Final

FAILURES: Final = 3
"""Failures in a row that open the circuit; refusals of a client's request are none."""
FIRST_OPEN_SECONDS: Final = 1.0
MAX_OPEN_SECONDS: Final = 30.0
SLOW_START_SECONDS: Final = 20.0
LEAST_WEIGHT: Final = 0.1


@dataclass(slots=True)
class Breaker:
    """Counts the failures of one engine. Times are seconds of one monotonic clock.

    An open circuit lets one request through after its time; that one closes it or opens it again
    for twice the time. A probe that never ends does not keep it: after the time another may try.
    """

    failures: int = 0
    open_seconds: float = 0.0
    open_until_s: float = 0.0

    @property
    def is_open(self) -> bool:
        """Whether requests are kept away, or a single one is let through."""
        return self.open_seconds > 0

    def allows(self, now_s: float) -> bool:
        """Whether a request may be sent now."""
        return not self.is_open or now_s >= self.open_until_s

    def begin(self, now_s: float) -> None:
        """Note that a request is sent; of an open circuit it is the probe."""
        if self.is_open:
            self.open_until_s = now_s + self.open_seconds

    def succeed(self) -> None:
        """Note that the engine works."""
        self.failures, self.open_seconds, self.open_until_s = 0, 0.0, 0.0

    def fail(self, now_s: float) -> None:
        """Note that the engine failed a request."""
        self.failures += 1
        if self.failures < FAILURES and not self.is_open:
            return
        doubled = max(FIRST_OPEN_SECONDS, 2 * self.open_seconds)
        self.open_seconds = min(MAX_OPEN_SECONDS, doubled)
        self.open_until_s = now_s + self.open_seconds


def slow_start_weight(ready_s: float) -> float:
    """Return the share of an engine that has been ready for some seconds: 0.1 at first, then 1."""
    return min(1.0, max(LEAST_WEIGHT, ready_s / SLOW_START_SECONDS))
