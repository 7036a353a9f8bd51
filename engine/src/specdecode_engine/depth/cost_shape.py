"""The form that a round's cost has before it is measured: a step, its rows, its drafting."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

# What is tried in a fit; the defaults of `CostShape` say what is believed without one.
FREE_ROWS = (4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
DRAFT_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
# How far a fit must be better, in squared log-seconds, to go from the defaults to twice or half.
RELUCTANCE = 1e-3


@dataclass(frozen=True, slots=True)
class CostShape:
    """Seconds of a round relative to an almost empty one.

    `free_rows` rows through the target double it (below that, weights are the price and rows are
    nearly free); a draft step takes `draft_share` of it. The defaults are on the dear side of what
    hardware shows (a GPU with a dense model: 280 and 0.05), so a depth that was never
    measured has to promise clearly more tokens before it is tried.
    """

    free_rows: float = 32.0
    draft_share: float = 0.1

    def relative(self, batch_size: float, num_steps: float) -> float:
        """Evaluate the form."""
        drafting = self.draft_share * num_steps * (1.0 + batch_size / self.free_rows)
        return 1.0 + batch_size * (num_steps + 1.0) / self.free_rows + drafting


def fit_shape(points: Sequence[tuple[int, int, float]]) -> CostShape:
    """Choose the shape nearest to (batch size, depth, seconds), whatever their common scale."""

    def misfit(shape: CostShape) -> float:
        residuals = [math.log(s / shape.relative(size, steps)) for size, steps, s in points]
        mean = sum(residuals) / len(residuals)
        spread = sum((residual - mean) ** 2 for residual in residuals)
        away = math.log2(shape.free_rows / 32.0) ** 2 + math.log2(shape.draft_share / 0.1) ** 2
        return spread + RELUCTANCE * away

    if not points:
        return CostShape()
    return min((CostShape(*pair) for pair in product(FREE_ROWS, DRAFT_SHARES)), key=misfit)
