"""The speculation table in the form that policies use: batch ranges, ascending."""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchRange:
    """The candidates of batches from `lower_bound` on, and the parameters of policy `ema`."""

    lower_bound: int
    candidate_steps: tuple[int, ...]  # ascending, each once
    up_hysteresis: float = 0.0
    down_hysteresis: float = -0.25
    ceiling_coeff: float = 0.0
    ema_alpha: float = 0.2
    update_interval: int = 5
    warmup_batches: int = 10

    def nearest(self, num_steps: int) -> int:
        """Return the largest candidate up to `num_steps`, or the smallest."""
        smaller = [steps for steps in self.candidate_steps if steps <= num_steps]
        return max(smaller) if smaller else self.candidate_steps[0]


def all_steps(ranges: Iterable[BatchRange]) -> tuple[int, ...]:
    """List every candidate of the ranges once, ascending."""
    return tuple(sorted({steps for entry in ranges for steps in entry.candidate_steps}))


class RangeTable:
    """Ranges by lower bound; a smaller batch belongs to the first.

    Args:
        ranges: in any order.
        table_hash: the label of the table in metrics.

    Raises:
        ValueError: there is no range, or two begin at the same batch size.
    """

    def __init__(self, ranges: Iterable[BatchRange], table_hash: str = "") -> None:
        self.table_hash = table_hash
        self.ranges = tuple(sorted(ranges, key=lambda entry: entry.lower_bound))
        self._bounds = [entry.lower_bound for entry in self.ranges]
        if not self._bounds or len(set(self._bounds)) < len(self._bounds):
            raise ValueError(f"a table needs ranges of different lower bounds, got {self._bounds}")

    def range_of(self, batch_size: int) -> BatchRange:
        """Return the range with the greatest lower bound that is not above `batch_size`."""
        return self.ranges[max(bisect_right(self._bounds, batch_size) - 1, 0)]

    def candidates(self) -> tuple[int, ...]:
        """List every candidate once, ascending."""
        return all_steps(self.ranges)
