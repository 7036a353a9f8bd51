"""What decode steps have done in the last minute, from totals that only grow."""

from collections import deque
from dataclasses import dataclass

from specdecode_api.metrics import core
from specdecode_engine.stats.snapshot import CoreSnapshot

SPAN_S = 60.0
_TOTALS = (core.EMITTED_TOKENS, core.REQUEST_STEPS, core.DRAFTED_TOKENS, core.ACCEPTED_TOKENS)


@dataclass(frozen=True, slots=True)
class DecodeRates:
    """Of `seconds` up to now; None without a decode step, or without a draft token.

    `accept_length` is output tokens per request and decode step.
    """

    seconds: float
    output_tokens_per_second: float | None = None
    accept_length: float | None = None
    accepted_share: float | None = None


class RecentRates:
    """Keeps the totals of the last `SPAN_S` seconds, and the last ones before."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, tuple[float, ...]]] = deque()

    def add(self, now_s: float, snapshot: CoreSnapshot) -> None:
        """Add the totals of a moment; totals of an engine that has started again begin at zero."""
        totals = tuple(snapshot[each] for each in _TOTALS)
        if self._samples and totals < self._samples[-1][1]:
            self._samples.clear()
        self._samples.append((now_s, totals))
        while len(self._samples) > 2 and self._samples[1][0] <= now_s - SPAN_S:
            self._samples.popleft()

    def rates(self) -> DecodeRates:
        """Return the rates between the first and the last totals."""
        if not self._samples:
            return DecodeRates(0.0)
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        seconds = last_s - first_s
        tokens, steps, drafted, accepted = (b - a for a, b in zip(first, last, strict=True))
        if not steps or not seconds:
            return DecodeRates(round(seconds, 3))
        return DecodeRates(
            round(seconds, 3),
            output_tokens_per_second=tokens / seconds,
            accept_length=tokens / steps,
            accepted_share=accepted / drafted if drafted else None,
        )
