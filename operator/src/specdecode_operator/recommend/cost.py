"""Seconds of a decode step by batch size and draft steps, as measured; None if unknown.

Within a batch bucket, each number of draft steps ran at its own mean batch size, so costs are
interpolated linearly: between the measured batch sizes of one number of draft steps, else between
measured numbers of draft steps. Costs are not extrapolated.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

from specdecode_operator.fleet.reading import BucketTotals

MIN_STEPS = 20.0
"""Decode steps that a mean needs."""
REACH = 1.25
"""Factor between a batch size and the nearest measured one up to which its cost is used."""

Point = tuple[float, float]


class Costs:
    """Seconds of a decode step, from the totals by (batch bucket, draft steps)."""

    def __init__(self, step_totals: Mapping[tuple[int, int], BucketTotals]) -> None:
        points: dict[int, list[Point]] = defaultdict(list)
        for (_, num_steps), cell in sorted(step_totals.items()):
            if cell.steps >= MIN_STEPS:
                at = cell.request_steps / cell.steps
                points[num_steps].append((at, cell.busy_seconds / cell.steps))
        self._points = {steps: sorted(found) for steps, found in points.items()}

    @property
    def measured(self) -> tuple[int, ...]:
        """Numbers of draft steps with a measurement, ascending."""
        return tuple(sorted(self._points))

    def seconds(self, batch_size: float, num_steps: int) -> float | None:
        """Seconds of a decode step with `batch_size` requests."""
        own = self._of_num_steps(batch_size, num_steps)
        if own is not None:
            return own
        known = [
            (float(steps), seconds)
            for steps in self.measured
            if (seconds := self._of_num_steps(batch_size, steps)) is not None
        ]
        return _between(known, float(num_steps))

    def _of_num_steps(self, batch_size: float, num_steps: int) -> float | None:
        points = self._points.get(num_steps, [])
        inside = _between(points, batch_size)
        if inside is not None or not points:
            return inside
        nearest, seconds = min(points, key=lambda point: abs(point[0] - batch_size))
        is_near = max(nearest, batch_size) <= REACH * min(nearest, batch_size)
        return seconds if is_near else None


def _between(points: Sequence[Point], at: float) -> float | None:
    """Interpolate between neighbours; None outside of all."""
    place = bisect_left([x for x, _ in points], at)
    if place < len(points) and points[place][0] == at:
        return points[place][1]
    if place in (0, len(points)):
        return None
    (low, below), (high, above) = points[place - 1], points[place]
    return below + (above - below) * (at - low) / (high - low)
