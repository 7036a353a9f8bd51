"""What a round of a depth takes at a batch size, as measured; None where that is not known.

Depths of one band ran at different batch sizes within it, so they are compared at the band's own
mean: along the measured batch sizes of the depth, and between measured depths, in straight lines.
Nothing is said of what lies outside: a depth that nobody ran may cost anything.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

from specdecode_operator.fleet.reading import DepthTotals

LEAST_ROUNDS = 20.0
"""A mean of fewer rounds is no measurement."""
REACH = 1.25
"""How far from the nearest measured batch size its cost is still taken, as a factor."""

Point = tuple[float, float]


class Costs:
    """Seconds of a round, from rounds by (band, depth)."""

    def __init__(self, depths: Mapping[tuple[int, int], DepthTotals]) -> None:
        points: dict[int, list[Point]] = defaultdict(list)
        for (_, num_steps), cell in sorted(depths.items()):
            if cell.rounds >= LEAST_ROUNDS:
                at = cell.request_steps / cell.rounds
                points[num_steps].append((at, cell.busy_seconds / cell.rounds))
        self._points = {steps: sorted(found) for steps, found in points.items()}

    @property
    def measured(self) -> tuple[int, ...]:
        """Depths of which anything is known, ascending."""
        return tuple(sorted(self._points))

    def seconds(self, batch_size: float, num_steps: int) -> float | None:
        """Seconds of a round of `batch_size` requests."""
        own = self._of_depth(batch_size, num_steps)
        if own is not None:
            return own
        known = [
            (float(steps), seconds)
            for steps in self.measured
            if (seconds := self._of_depth(batch_size, steps)) is not None
        ]
        return _between(known, float(num_steps))

    def _of_depth(self, batch_size: float, num_steps: int) -> float | None:
        points = self._points.get(num_steps, [])
        inside = _between(points, batch_size)
        if inside is not None or not points:
            return inside
        nearest, seconds = min(points, key=lambda point: abs(point[0] - batch_size))
        is_near = max(nearest, batch_size) <= REACH * min(nearest, batch_size)
        return seconds if is_near else None


def _between(points: Sequence[Point], at: float) -> float | None:
    """Follow the line between neighbours; None outside of all."""
    place = bisect_left([x for x, _ in points], at)
    if place < len(points) and points[place][0] == at:
        return points[place][1]
    if place in (0, len(points)):
        return None
    (low, below), (high, above) = points[place - 1], points[place]
    return below + (above - below) * (at - low) / (high - low)
