"""The gain of a table: the time that the measured tokens took, over the time they would take.

Its interval is log-normal, with a standard deviation of the gain's logarithm over pods if there are
enough of them, since pods differ: a jackknife over groups of pods (Tukey 1958), with one estimate
per group. Of fewer pods, acceptances and times are drawn around their means (a parametric
bootstrap), which takes `DRAWS` estimates.
"""

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from specdecode_operator.fleet.reading import BucketTotals, PositionTotals
from specdecode_operator.recommend.cost import Costs
from specdecode_operator.recommend.pool import (
    AllSteps,
    Pool,
    Positions,
    summed_positions,
    summed_steps,
)
from specdecode_operator.recommend.survival import rates

DRAWS = 40
LEVEL = 0.9
QUANTILE = statistics.NormalDist().inv_cdf(0.5 + LEVEL / 2)
ENOUGH_PODS = 4
MAX_GROUPS = 10
"""Groups of pods that are left out in turn."""
STEPS_PER_REQUEST = 16.0
"""Drafts of one request are correlated: this many of them count as one independent trial."""
TIME_SPREAD = 0.3
"""Standard deviation of a decode step's time, relative to its mean."""

LogGain = Callable[[AllSteps, Positions], float]


@dataclass(frozen=True, slots=True)
class RateEstimates:
    """Tokens per second and request by batch bucket and draft steps, and the present work."""

    batch_size: Mapping[int, float]  # mean, by batch bucket
    tokens: Mapping[int, float]  # expected tokens of the measured decode steps, by batch bucket
    seconds: Mapping[int, float]  # of the measured decode steps, by batch bucket
    rates: Mapping[int, Mapping[int, float]]  # where the cost is known


Cell = TypeVar("Cell", BucketTotals, PositionTotals)


def estimate(totals: AllSteps, positions: Positions, num_steps: Sequence[int]) -> RateEstimates:
    """Estimate the rates of numbers of draft steps, and the work at those that ran."""
    deepest = max([*num_steps, *(steps for _, steps in totals)], default=0)
    acceptance, costs = rates(positions, deepest), Costs(totals)
    batch_size, tokens, seconds, found = {}, {}, {}, {}
    for bucket, cells in _by_bucket(totals).items():
        total = sum(cell.steps for _, cell in cells)
        if total <= 0:
            continue
        expected = acceptance.expected_tokens(bucket)
        size = sum(cell.request_steps for _, cell in cells) / total
        batch_size[bucket] = size
        tokens[bucket] = sum(cell.request_steps * expected[steps] for steps, cell in cells)
        seconds[bucket] = sum(cell.busy_seconds for _, cell in cells)
        taken = {steps: costs.seconds(size, steps) for steps in num_steps}
        found[bucket] = {
            steps: expected[steps] / each for steps, each in taken.items() if each is not None
        }
    return RateEstimates(batch_size, tokens, seconds, found)


def gain(view: RateEstimates, best: Mapping[int, int]) -> float:
    """Relative increase of tokens per second if the buckets in `best` used its draft steps."""
    now = then = 0.0
    for bucket, seconds in view.seconds.items():
        now += seconds
        rate = view.rates[bucket].get(best[bucket]) if bucket in best else None
        then += seconds if rate is None else view.tokens[bucket] / (rate * view.batch_size[bucket])
    return now / then - 1.0 if then else 0.0


def interval(pool: Pool, best: Mapping[int, int], expected: float) -> tuple[float, float]:
    """The `LEVEL` interval of the `expected` gain; the same for the same pool."""
    num_steps = sorted(set(best.values()))

    def log_gain(steps: AllSteps, positions: Positions) -> float:
        return math.log1p(gain(estimate(steps, positions, num_steps), best))

    spread = _over_pods if len(pool.pods) >= ENOUGH_PODS else _over_cells
    deviation = spread(pool, log_gain)
    factor = math.exp(QUANTILE * deviation)
    ratio = 1.0 + expected
    return min(expected, ratio / factor - 1.0), max(expected, ratio * factor - 1.0)


def _by_bucket(totals: AllSteps) -> dict[int, list[tuple[int, BucketTotals]]]:
    found: dict[int, list[tuple[int, BucketTotals]]] = {}
    for (bucket, steps), cell in sorted(totals.items()):
        found.setdefault(bucket, []).append((steps, cell))
    return found


def _over_pods(pool: Pool, log_gain: LogGain) -> float:
    """Standard deviation of the logarithm over pods."""
    count = min(len(pool.pods), MAX_GROUPS)
    logs = []
    all_steps, all_positions = pool.step_totals, pool.positions
    for group in range(count):
        left_out = pool.pods[group::count]
        steps = _without(all_steps, summed_steps(left_out), BucketTotals)
        positions = _without(all_positions, summed_positions(left_out), PositionTotals)
        logs.append(log_gain(steps, positions))
    return (count - 1) * statistics.stdev(logs) / math.sqrt(count)


def _without(
    totals: Mapping[tuple[int, int], Cell],
    parts: Mapping[tuple[int, int], Cell],
    make: Callable[..., Cell],
) -> dict[tuple[int, int], Cell]:
    """Totals of all cells but for some pods'."""
    return {
        at: make(*map(_less, cell, parts[at])) if at in parts else cell
        for at, cell in totals.items()
    }


def _less(total: float, part: float) -> float:
    return max(0.0, total - part)


def _over_cells(pool: Pool, log_gain: LogGain) -> float:
    """Standard deviation of the logarithm, with times and acceptances around their means."""
    steps, positions, chance = pool.step_totals, pool.positions, random.Random(len(pool.pods))
    logs = [
        log_gain(
            {at: _retimed(cell, chance) for at, cell in steps.items()},
            {at: _redrawn(cell, chance) for at, cell in positions.items()},
        )
        for _ in range(DRAWS)
    ]
    return statistics.stdev(logs)


def _retimed(cell: BucketTotals, chance: random.Random) -> BucketTotals:
    factor = max(chance.gauss(1.0, TIME_SPREAD / max(cell.steps, 1.0) ** 0.5), 0.1)
    return BucketTotals(cell.steps, cell.request_steps, cell.busy_seconds * factor)


def _redrawn(cell: PositionTotals, chance: random.Random) -> PositionTotals:
    kept = cell.accepted / STEPS_PER_REQUEST + 0.5
    lost = (cell.reached - cell.accepted) / STEPS_PER_REQUEST + 0.5
    return PositionTotals(cell.reached, cell.reached * chance.betavariate(kept, lost))
