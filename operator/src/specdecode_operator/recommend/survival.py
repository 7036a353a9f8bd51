"""Expected tokens of a decode step by its draft steps, measured or not.

A position is reached only if its predecessors were accepted, so its acceptance rate among those
does not depend on the draft steps that ran. A rate with few observations is shrunk towards the same
position over all batch buckets, and that one towards the position before it, which extrapolates to
draft steps that never ran.
"""

from collections.abc import Mapping

from specdecode_operator.fleet.reading import PositionTotals

PRIOR_RATE, PRIOR_TRIALS = 0.5, 1.0
LEAN_POSITION, LEAN_BAND = 6.0, 64.0


def rates(positions: Mapping[tuple[int, int], PositionTotals], deepest: int) -> "Rates":
    """Estimate the rates of positions 1 … `deepest`."""
    overall: list[float] = []
    before, lean = PRIOR_RATE, PRIOR_TRIALS
    for position in range(1, deepest + 1):
        cells = [cell for (_, place), cell in positions.items() if place == position]
        accepted, reached = sum(c.accepted for c in cells), sum(c.reached for c in cells)
        before = (accepted + lean * before) / (reached + lean)
        lean = LEAN_POSITION
        overall.append(before)
    return Rates(positions, tuple(overall))


class Rates:
    """Acceptance rates by batch bucket and position."""

    def __init__(
        self, positions: Mapping[tuple[int, int], PositionTotals], overall: tuple[float, ...]
    ) -> None:
        self._positions = positions
        self._overall = overall

    def expected_tokens(self, bucket: int) -> tuple[float, ...]:
        """Tokens of a decode step with 0, 1, … draft steps: 1, plus each survival probability."""
        tokens = survival = 1.0
        expected = [tokens]
        for place, rate in enumerate(self._overall, start=1):
            cell = self._positions.get((bucket, place), PositionTotals())
            own = (cell.accepted + LEAN_BAND * rate) / (cell.reached + LEAN_BAND)
            survival *= own
            tokens += survival
            expected.append(tokens)
        return tuple(expected)
