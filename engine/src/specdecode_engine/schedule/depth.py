"""How many steps to draft in a round."""

from bisect import bisect_right
from collections.abc import Mapping
from typing import Protocol


class DepthPolicy(Protocol):
    """Chooses the depth of a round for the batch that is about to decode."""

    def choose(self, batch_size: int) -> int:
        """Return the number of draft steps; 0 is plain decoding."""
        ...


class StaticDepth:
    """One depth, kept within what the table allows for the batch size.

    Where a range of batch sizes does not list `num_steps`, its largest smaller candidate is used,
    or its smallest one.
    """

    def __init__(self, num_steps: int, table: Mapping[int, tuple[int, ...]] | None = None) -> None:
        self._num_steps = num_steps
        self._bounds = sorted(table or {})
        self._steps = [_nearest(num_steps, (table or {})[bound]) for bound in self._bounds]

    def choose(self, batch_size: int) -> int:
        """Look up the range that `batch_size` falls into; below all of them counts as the first."""
        if not self._bounds:
            return self._num_steps
        return self._steps[max(bisect_right(self._bounds, batch_size) - 1, 0)]


def _nearest(num_steps: int, candidates: tuple[int, ...]) -> int:
    smaller = [steps for steps in candidates if steps <= num_steps]
    return max(smaller) if smaller else min(candidates)
