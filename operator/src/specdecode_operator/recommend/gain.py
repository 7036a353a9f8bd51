"""The gain of a table: the time that the measured tokens took, over the time they would take.

Its interval is a bootstrap: over pods if there are enough of them, since pods differ, else over
acceptances and times around their means.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specdecode_operator.fleet.reading import DepthTotals, PositionTotals
from specdecode_operator.recommend.cost import Costs
from specdecode_operator.recommend.pool import (
    PodFigures,
    Pool,
    summed_depths,
    summed_positions,
)
from specdecode_operator.recommend.survival import rates

DRAWS = 200
LEVEL = 0.9
ENOUGH_PODS = 4
STEPS_PER_REQUEST = 16.0
"""Drafts of one request are correlated: this many of them count as one independent trial."""
TIME_SPREAD = 0.3
"""Standard deviation of a decode step's time, relative to its mean."""


@dataclass(frozen=True, slots=True)
class RateEstimates:
    """Tokens per second and request by batch bucket and draft steps, and the present work."""

    batch_size: Mapping[int, float]  # mean, by batch bucket
    tokens: Mapping[int, float]  # expected tokens of the measured decode steps, by batch bucket
    seconds: Mapping[int, float]  # of the measured decode steps, by batch bucket
    rates: Mapping[int, Mapping[int, float]]  # where the cost is known


def estimate(pods: Sequence[PodFigures], depths: Sequence[int]) -> RateEstimates:
    """Estimate the rates of `depths` (draft steps), and the work at the draft steps that ran."""
    totals = summed_depths(pods)
    deepest = max([*depths, *(steps for _, steps in totals)], default=0)
    chances, costs = rates(summed_positions(pods), deepest), Costs(totals)
    batch_size, tokens, seconds, found = {}, {}, {}, {}
    for band in sorted({band for band, _ in totals}):
        here = {steps: cell for (own, steps), cell in totals.items() if own == band}
        total = sum(cell.steps for cell in here.values())
        if total <= 0:
            continue
        expected = chances.expected_tokens(band)
        size = sum(cell.request_steps for cell in here.values()) / total
        batch_size[band] = size
        tokens[band] = sum(cell.request_steps * expected[steps] for steps, cell in here.items())
        seconds[band] = sum(cell.busy_seconds for cell in here.values())
        taken = {steps: costs.seconds(size, steps) for steps in depths}
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


def interval(pool: Pool, depths: Sequence[int], best: Mapping[int, int]) -> tuple[float, float]:
    """The `LEVEL` interval of the gain; the same for the same pool."""
    chance = random.Random(len(pool.pods))
    drawn = sorted(gain(estimate(_again(pool, chance), depths), best) for _ in range(DRAWS))
    cut = int(DRAWS * (1.0 - LEVEL) / 2)
    return drawn[cut], drawn[-1 - cut]


def _again(pool: Pool, chance: random.Random) -> Sequence[PodFigures]:
    if len(pool.pods) >= ENOUGH_PODS:
        return chance.choices(pool.pods, k=len(pool.pods))
    depths = {at: _retimed(cell, chance) for at, cell in pool.depths.items()}
    positions = {at: _redrawn(cell, chance) for at, cell in pool.positions.items()}
    return (PodFigures(depths, positions),)


def _retimed(cell: DepthTotals, chance: random.Random) -> DepthTotals:
    factor = max(chance.gauss(1.0, TIME_SPREAD / max(cell.steps, 1.0) ** 0.5), 0.1)
    return DepthTotals(cell.steps, cell.request_steps, cell.busy_seconds * factor)


def _redrawn(cell: PositionTotals, chance: random.Random) -> PositionTotals:
    kept = cell.accepted / STEPS_PER_REQUEST + 0.5
    lost = (cell.reached - cell.accepted) / STEPS_PER_REQUEST + 0.5
    return PositionTotals(cell.reached, cell.reached * chance.betavariate(kept, lost))
