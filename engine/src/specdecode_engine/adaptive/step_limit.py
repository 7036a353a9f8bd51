"""The limit of a step's time under the objective InterTokenLatency, and its margin.

A request gets all tokens of a step at once, so that its longest gap between two events is the time
of one step.
"""

import math

# Share of the steps at the limit that may exceed it; the aim is 1 % of the gaps.
EXCESS = 0.0075
# By how much the logarithm of the margin rises with a step that exceeds the margin.
RISE = 0.02
FIRST_MARGIN = 1.1
# Steps between two drafts that may exceed the limit to catch up on steps without one: 0.25 %.
CATCH_UP_INTERVAL = 400


class StepLimit:
    """Bounds the expected time of steps such that few of them exceed `max_step_s`.

    A step takes longer than expected by a factor that varies, the host's work between two forwards
    included. The margin is the quantile of that factor which `EXCESS` of the steps exceed, by
    stochastic approximation (Robbins and Monro, 1951): a step above it raises its logarithm by
    `RISE`, one below lowers it by `RISE` · `EXCESS` / (1 - `EXCESS`). No distribution is assumed.
    """

    def __init__(self) -> None:
        self.max_step_s = math.inf
        self.expected_s = math.inf  # the longest time that a step may be expected to take
        self._log_margin = math.log(FIRST_MARGIN)
        self._next_catch_up = 0

    def set(self, max_step_s: float) -> None:
        """Change the limit; infinity ends it. The margin stays."""
        self.max_step_s = max_step_s
        self.expected_s = max_step_s * math.exp(-self._log_margin)

    def observe(self, expected_s: float, gap_s: float) -> None:
        """Refine the margin by a step; a gap that is not a positive number is ignored.

        Args:
            gap_s: from the end of the forward before to that of the step's.
        """
        if not 0.0 < gap_s < math.inf:
            return
        if math.log(gap_s / expected_s) > self._log_margin:
            self._log_margin += RISE
        else:
            self._log_margin = max(self._log_margin - RISE * EXCESS / (1.0 - EXCESS), 0.0)
        self.set(self.max_step_s)

    def takes_catching_up(self, sequence: int) -> bool:
        """Whether the draft of a decision may exceed the limit by what it catches up on."""
        return sequence >= self._next_catch_up

    def catch_up(self, sequence: int) -> None:
        """Note a draft that may have exceeded the limit."""
        self._next_catch_up = sequence + CATCH_UP_INTERVAL
