"""A budget of verified positions per step, sized from the confidences of the step before.

vLLM's adaptive verification, as its documentation and pull requests describe it: confidences of
drafted positions, smoothed per request, are ranked over all requests. The prefix of the ranking
with the most expected tokens per second of a cost curve is the budget, computed on the host from
confidences one step old, and then divided among requests by live ones. The draft is always drafted
whole. Here the confidences are the true survival of the step.
"""

import numpy as np
from numpy.typing import NDArray

from bench.simulation.policy.profiles import Profile
from specdecode_engine.adaptive.policy import Decision, Feedback, Reason

SMOOTHING = 0.8  # weight of the newest confidence
CAPTURED = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class VerifyBudget:
    """Verifies as many of `num_steps` drafted positions as the budget allows."""

    def __init__(self, profile: Profile, num_steps: int, most_rows: int) -> None:
        self._num_steps = num_steps
        self._profile = profile
        sizes = np.array(CAPTURED)
        rows = np.arange(most_rows + 1)
        places = np.minimum(np.searchsorted(sizes, rows), len(sizes) - 1)
        padded = np.maximum(sizes[places], rows)
        self._target_s = np.array([profile.target_s(int(count)) for count in padded])
        self._live = self._smoothed = np.zeros((0, num_steps))

    def see(self, survival: Floats) -> None:
        """Take the confidences of the step that is about to run."""
        self._live = survival[:, : self._num_steps]

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Draft all positions."""
        return Decision(self._num_steps, 1, 0, Reason.KEEP)

    def divide(self, batch_size: int, kv_tokens: int) -> Ints:
        """Size the budget from the step before; return the verified positions of each request."""
        stale = self._smoothed if len(self._smoothed) == batch_size else self._live
        ranked = np.sort(stale, axis=None)[::-1]
        tokens = batch_size + np.concatenate([[0.0], np.cumsum(ranked)])
        fixed_s = self._profile.drafting_s(batch_size, self._num_steps)
        fixed_s += self._profile.kv_token_s * kv_tokens
        seconds = self._target_s[batch_size + np.arange(len(tokens))] + fixed_s
        budget = int((tokens / seconds).argmax())
        chosen = np.argsort(-self._live, axis=None, kind="stable")[:budget]
        self._smoothed = SMOOTHING * self._live + (1.0 - SMOOTHING) * stale
        return np.bincount(chosen // self._num_steps, minlength=batch_size)

    def observe(self, feedback: Feedback) -> None:
        """Learn nothing: the confidences are seen."""
