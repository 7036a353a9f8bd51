"""The decayed mean of accepted drafts and its thresholds, as published: one slot of it."""

from collections.abc import Sequence


class EmaSlot:
    """Candidates, a mean, and how it moves among them; evaluated every 5 steps after 10."""

    def __init__(
        self, candidates: Sequence[int], down_hysteresis: float, initial_steps: int = 3
    ) -> None:
        self._candidates = sorted(candidates)
        middle = self._candidates[len(self._candidates) // 2]
        self.current = initial_steps if initial_steps in self._candidates else middle
        self._down_hysteresis = down_hysteresis
        self._ema = self.current - 1.0
        self._count = 0

    def update(self, accepted: Sequence[int]) -> None:
        """Take in a step; the depth that runs now is taken for the one that ran then."""
        if not accepted:
            return
        if self.current:
            self._ema += 0.2 * (sum(accepted) / len(accepted) - self._ema)
        self._count += 1
        if self._count > 10 and (self._count - 10) % 5 == 0:
            self._evaluate()

    def _evaluate(self) -> None:
        steps = self._candidates
        place = steps.index(self.current)
        if self.current == 0:  # probe, whatever the mean is
            self.current = steps[min(place + 1, len(steps) - 1)]
            if self.current and self._ema < 0.0:
                self._ema = self.current - 1.0
            return
        start = place
        while place and self._ema <= self._drop(steps[place - 1]):
            place -= 1
        if place == start:
            while place < len(steps) - 1 and self._ema > steps[place] - 0.5:
                place += 1
        self.current = steps[place]

    def _drop(self, below: int) -> float:
        return (0.5 if below == 0 else below - 0.5) + self._down_hysteresis
