"""The best depth for what was true some drafts ago: a perfect estimate with a delay."""

from collections import deque
from collections.abc import Sequence

from specdecode_engine.adaptive.policy import Decision, Feedback, Reason


class Clairvoyant:
    """Knows the truth before each step, and acts on it `delay_drafts` drafts late.

    Nothing that learns from drafts alone can be sure of a change sooner than a few of them. Costs
    and batch sizes are known at once.
    """

    def __init__(self, candidates: Sequence[int], delay_drafts: int = 0) -> None:
        self._candidates = tuple(candidates)
        self._delay_drafts = delay_drafts
        self._seen: deque[tuple[int, Sequence[float]]] = deque()
        self._depth = 0
        self._drafts = 0

    def see(self, batch_size: int, tokens: Sequence[float], seconds: Sequence[float]) -> None:
        """Take what the next step emits and how long it takes, by depth."""
        self._seen.append((self._drafts, tokens))
        while len(self._seen) > 1 and self._seen[1][0] <= self._drafts - self._delay_drafts:
            self._seen.popleft()
        known = self._seen[0][1]
        self._depth = max(self._candidates, key=lambda steps: known[steps] / seconds[steps])
        self._drafts += batch_size

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Run the best depth."""
        return Decision(self._depth, 1, 0, Reason.KEEP)

    def observe(self, feedback: Feedback) -> None:
        """Learn nothing."""
