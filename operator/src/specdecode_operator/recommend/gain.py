"""The gain of a table: the time that the measured tokens took, over the time they would take.

Its interval is that of a bootstrap: over pods if there are enough of them, since pods differ, else
over acceptances and times around their means. The draws give the standard deviation of the gain's
logarithm, and the interval is log-normal: its bounds are about as precise as percentiles of 200
draws, at a fifth of the time.
"""

import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import mul

from specdecode_operator.fleet.reading import DepthTotals, PositionTotals
from specdecode_operator.recommend.cost import Costs
from specdecode_operator.recommend.pool import Depths, Pool, Positions
from specdecode_operator.recommend.survival import rates

DRAWS = 40
LEVEL = 0.9
QUANTILE = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2)
ENOUGH_PODS = 4
STEPS_PER_REQUEST = 16.0
"""Drafts of one request are correlated: this many of them count as one independent trial."""
TIME_SPREAD = 0.3
"""Standard deviation of a decode step's time, relative to its mean."""

Draw = Callable[[random.Random], tuple[Depths, Positions]]


@dataclass(frozen=True, slots=True)
class RateEstimates:
    """Tokens per second and request by batch bucket and draft steps, and the present work."""

    batch_size: Mapping[int, float]  # mean, by batch bucket
    tokens: Mapping[int, float]  # expected tokens of the measured decode steps, by batch bucket
    seconds: Mapping[int, float]  # of the measured decode steps, by batch bucket
    rates: Mapping[int, Mapping[int, float]]  # where the cost is known


def estimate(totals: Depths, positions: Positions, num_steps: Sequence[int]) -> RateEstimates:
    """Estimate the rates of numbers of draft steps, and the work at those that ran."""
    deepest = max([*num_steps, *(steps for _, steps in totals)], default=0)
    acceptance, costs = rates(positions, deepest), Costs(totals)
    batch_size, tokens, seconds, found = {}, {}, {}, {}
    for band, cells in _by_bucket(totals).items():
        total = sum(cell.steps for _, cell in cells)
        if total <= 0:
            continue
        expected = acceptance.expected_tokens(band)
        size = sum(cell.request_steps for _, cell in cells) / total
        batch_size[band] = size
        tokens[band] = sum(cell.request_steps * expected[steps] for steps, cell in cells)
        seconds[band] = sum(cell.busy_seconds for _, cell in cells)
        taken = {steps: costs.seconds(size, steps) for steps in num_steps}
        found[band] = {
            steps: expected[steps] / each for steps, each in taken.items() if each is not None
        }
    return RateEstimates(batch_size, tokens, seconds, found)


def gain(view: RateEstimates, best: Mapping[int, int]) -> float:
    """Relative increase of tokens per second if the buckets in `best` used its draft steps."""
    now = then = 0.0
    for band, seconds in view.seconds.items():
        now += seconds
        rate = view.rates[band].get(best[band]) if band in best else None
        then += seconds if rate is None else view.tokens[band] / (rate * view.batch_size[band])
    return now / then - 1.0 if then else 0.0


def interval(pool: Pool, best: Mapping[int, int], expected: float) -> tuple[float, float]:
    """The `LEVEL` interval of the `expected` gain; the same for the same pool."""
    chance, num_steps = random.Random(len(pool.pods)), sorted(set(best.values()))
    draw = _over_pods(pool) if len(pool.pods) >= ENOUGH_PODS else _over_cells(pool)
    logs = [math.log1p(gain(estimate(*draw(chance), num_steps), best)) for _ in range(DRAWS)]
    factor = math.exp(QUANTILE * statistics.stdev(logs))
    ratio = 1.0 + expected
    return min(expected, ratio / factor - 1.0), max(expected, ratio * factor - 1.0)


def _by_bucket(totals: Depths) -> dict[int, list[tuple[int, DepthTotals]]]:
    found: dict[int, list[tuple[int, DepthTotals]]] = {}
    for (band, steps), cell in sorted(totals.items()):
        found.setdefault(band, []).append((steps, cell))
    return found


def _over_pods(pool: Pool) -> Draw:
    """Draw pods with replacement."""
    number = len(pool.pods)
    depths = _columns([pod.depths for pod in pool.pods], DepthTotals())
    positions = _columns([pod.positions for pod in pool.pods], PositionTotals())

    def draw(chance: random.Random) -> tuple[Depths, Positions]:
        drawn = Counter(chance.choices(range(number), k=number))
        weights = [drawn[place] for place in range(number)]
        return (
            {at: DepthTotals(*_weighted(columns, weights)) for at, columns in depths.items()},
            {at: PositionTotals(*_weighted(columns, weights)) for at, columns in positions.items()},
        )

    return draw


def _over_cells(pool: Pool) -> Draw:
    """Draw times and acceptances around their means."""
    depths, positions = pool.depths, pool.positions

    def draw(chance: random.Random) -> tuple[Depths, Positions]:
        return (
            {at: _retimed(cell, chance) for at, cell in depths.items()},
            {at: _redrawn(cell, chance) for at, cell in positions.items()},
        )

    return draw


Cell = tuple[float, ...]


def _columns(
    pods: Sequence[Mapping[tuple[int, int], Cell]], nothing: Cell
) -> dict[tuple[int, int], list[Cell]]:
    """The values of each cell by pod, one column per field."""
    places = dict.fromkeys(at for pod in pods for at in pod)
    return {at: list(zip(*(pod.get(at, nothing) for pod in pods), strict=True)) for at in places}


def _weighted(columns: Sequence[Cell], weights: Sequence[int]) -> list[float]:
    return [sum(map(mul, column, weights)) for column in columns]


def _retimed(cell: DepthTotals, chance: random.Random) -> DepthTotals:
    factor = max(chance.gauss(1.0, TIME_SPREAD / max(cell.steps, 1.0) ** 0.5), 0.1)
    return DepthTotals(cell.steps, cell.request_steps, cell.busy_seconds * factor)


def _redrawn(cell: PositionTotals, chance: random.Random) -> PositionTotals:
    kept = cell.accepted / STEPS_PER_REQUEST + 0.5
    lost = (cell.reached - cell.accepted) / STEPS_PER_REQUEST + 0.5
    return PositionTotals(cell.reached, cell.reached * chance.betavariate(kept, lost))
