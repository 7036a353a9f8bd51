"""What changing over would be worth: the time that today's tokens took, over what they would take.

Its interval comes from drawing the fleet again: pods with replacement where there are enough of
them, since pods differ; else acceptances and times around their means.
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
ROUNDS_OF_A_REQUEST = 16.0
"""Drafts of one request share a fate: so many of them count as one trial."""
TIME_SPREAD = 0.3
"""Standard deviation of a round's time, as a part of its mean."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What each depth would bring in each band, in tokens per second and request."""

    batch_size: Mapping[int, float]  # mean, by band
    tokens: Mapping[int, float]  # emitted so far as expected, by band
    seconds: Mapping[int, float]  # spent so far, by band
    rates: Mapping[int, Mapping[int, float]]  # by band and depth, where the cost is known


def outlook(pods: Sequence[PodFigures], depths: Sequence[int]) -> Outlook:
    """Work out the rates of `depths`, and what was done at whatever depth ran."""
    rounds = summed_depths(pods)
    deepest = max([*depths, *(steps for _, steps in rounds)], default=0)
    chances, costs = rates(summed_positions(pods), deepest), Costs(rounds)
    batch_size, tokens, seconds, found = {}, {}, {}, {}
    for band in sorted({band for band, _ in rounds}):
        here = {steps: cell for (own, steps), cell in rounds.items() if own == band}
        total = sum(cell.rounds for cell in here.values())
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
    return Outlook(batch_size, tokens, seconds, found)


def gain(view: Outlook, best: Mapping[int, int]) -> float:
    """Share of tokens per second more if the bands in `best` decoded at its depths."""
    now = then = 0.0
    for band, seconds in view.seconds.items():
        now += seconds
        rate = view.rates[band].get(best[band]) if band in best else None
        then += seconds if rate is None else view.tokens[band] / (rate * view.batch_size[band])
    return now / then - 1.0 if then else 0.0


def interval(pool: Pool, depths: Sequence[int], best: Mapping[int, int]) -> tuple[float, float]:
    """Bounds that hold the gain at `LEVEL`; the same for the same pool."""
    chance = random.Random(len(pool.pods))
    drawn = sorted(gain(outlook(_again(pool, chance), depths), best) for _ in range(DRAWS))
    cut = int(DRAWS * (1.0 - LEVEL) / 2)
    return drawn[cut], drawn[-1 - cut]


def _again(pool: Pool, chance: random.Random) -> Sequence[PodFigures]:
    if len(pool.pods) >= ENOUGH_PODS:
        return chance.choices(pool.pods, k=len(pool.pods))
    depths = {at: _retimed(cell, chance) for at, cell in pool.depths.items()}
    positions = {at: _redrawn(cell, chance) for at, cell in pool.positions.items()}
    return (PodFigures(depths, positions),)


def _retimed(cell: DepthTotals, chance: random.Random) -> DepthTotals:
    factor = max(chance.gauss(1.0, TIME_SPREAD / max(cell.rounds, 1.0) ** 0.5), 0.1)
    return DepthTotals(cell.rounds, cell.request_steps, cell.busy_seconds * factor)


def _redrawn(cell: PositionTotals, chance: random.Random) -> PositionTotals:
    kept = cell.accepted / ROUNDS_OF_A_REQUEST + 0.5
    lost = (cell.reached - cell.accepted) / ROUNDS_OF_A_REQUEST + 0.5
    return PositionTotals(cell.reached, cell.reached * chance.betavariate(kept, lost))
