"""Tokens by a window of survival rates over a table of costs, as published; never depth 0."""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence

from specdecode_engine.adaptive.policy import Decision, Feedback, Reason

WINDOW, INTERVAL = 20, 10


class ThroughputAware:
    """Every 10 steps the depth of the best score, from the last 20 steps of each position.

    Args:
        candidates: depths, all above 0.
        costs: (batch size, depth) → seconds; a size between two is looked up at the larger.
    """

    def __init__(
        self, candidates: Sequence[int], costs: Mapping[tuple[int, int], float], initial: int = 3
    ) -> None:
        self._candidates = sorted(candidates)
        self._costs = costs
        self._sizes = sorted({size for size, _ in costs})
        self._windows: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(16)]
        self._current = initial
        self._steps = self._number = 0

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Run what was chosen last."""
        self._number += 1
        return Decision(self._current, 1, self._number, Reason.KEEP)

    def observe(self, feedback: Feedback) -> None:
        """Fill the windows of the depth that runs now, and score."""
        accepted = feedback.accepted
        if not accepted:
            return
        for place in range(min(self._current, feedback.decision.num_steps)):
            reached = sum(length > place for length in accepted)
            self._windows[place].append(reached / len(accepted))
        self._steps += 1
        is_full = all(len(window) == WINDOW for window in self._windows[: self._current])
        if self._steps % INTERVAL == 0 and is_full:
            self._choose(feedback.batch_size)

    def _choose(self, batch_size: int) -> None:
        size = self._sizes[min(bisect_left(self._sizes, batch_size), len(self._sizes) - 1)]
        survival = self._survival()

        def score(steps: int) -> float:
            return (1.0 + sum(survival[:steps])) / self._costs[size, steps]

        chosen = max(self._candidates, key=score)
        if chosen < self._current:
            for window in self._windows[chosen:]:
                window.clear()
        self._current = chosen

    def _survival(self) -> list[float]:
        """Means of the known positions, then geometric."""
        known = [sum(w) / len(w) for w in self._windows[: self._current]]
        if known[0] <= 0.0:
            return [0.0] * self._candidates[-1]
        ratio = (known[-1] / known[0]) ** (1.0 / (len(known) - 1)) if len(known) > 1 else 1.0
        while len(known) < self._candidates[-1]:
            known.append(known[-1] * min(ratio, 1.0))
        return known
