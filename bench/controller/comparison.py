"""What a policy that decides per request comes to on one machine, at every concurrency and load."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, mean
from typing import NamedTuple

from controller.budgets import MOST_ROWS, PER_BATCH, PER_REQUEST, RIVAL_BUDGETS, WRONG, all_budgets
from controller.machines import (
    PUBLISHED,
    PUBLISHED_BAD,
    PUBLISHED_GOOD,
    PUBLISHED_SHARE,
    all_machines,
)
from controller.service import Costs, Served, serve
from controller.traffic import CONCURRENCY, MIXED, all_traffic, published_traffic

MOST_PROMPT_ROWS = 128 * max(CONCURRENCY)
Figures = dict[str, object]


@dataclass(frozen=True, slots=True)
class Extent:
    """Sizes of a comparison; small batches run for more steps, as their learning is noisier."""

    concurrency: tuple[int, ...] = CONCURRENCY
    least_steps: int = 800
    requests: int = 12_800  # steps times concurrency, up to four times the least steps

    def steps(self, slots: int) -> int:
        return min(max(self.least_steps, self.requests // slots), 4 * self.least_steps)


FULL, QUICK = Extent(), Extent((1, 8, 64), 400, 1600)


class Cell(NamedTuple):
    """One load at one concurrency: what every policy came to, by name."""

    slots: int
    load: str
    served: dict[str, Served]

    def ratio(self, name: str, other: str) -> float:
        """Tokens per second of a policy to those of another, each relative to the best choices."""
        return self.served[name].of_best / self.served[other].of_best


def compare(place: int, extent: Extent, seed: int) -> Figures:
    """Compare the policies on the machine at this place of `all_machines`."""
    machine = all_machines()[place]
    costs = Costs(machine, MOST_ROWS + MOST_PROMPT_ROWS)
    cells = [
        Cell(slots, load.name, _serve_all(costs, extent, load.name, slots, seed))
        for slots in extent.concurrency
        for load in all_traffic(slots, extent.steps(slots))
    ]
    figures = {**summary(cells), "by_concurrency": by_concurrency(cells)}
    if machine.drafts_blocks:
        figures["published"] = _published(costs, extent, seed)
    return figures


def summary(cells: Sequence[Cell]) -> Figures:
    """Return the figures of one machine.

    Means over loads, and of those the least over concurrency; `worst_…` and `regret_worst` are of
    the worst load. `mixed_gain` is that of the concurrency at which it is largest: where rows are
    free both verify all, and where they cost too much neither drafts.
    """
    mixed = [cell for cell in cells if cell.load == MIXED]
    best = max(mixed, key=lambda cell: cell.ratio(PER_REQUEST, PER_BATCH))
    regrets = [1.0 - cell.served[PER_REQUEST].of_best for cell in cells]

    def least(value: dict[tuple[int, str], float]) -> float:
        sizes = {slots for slots, _ in value}
        return min(geometric_mean([v for (s, _), v in value.items() if s == one]) for one in sizes)

    to_fixed = {cell[:2]: cell.served[PER_REQUEST].to_best_fixed for cell in cells}
    to_none = {cell[:2]: cell.served[PER_REQUEST].to_none for cell in cells}
    figures: dict[str, float] = {
        "vs_best_fixed": least(to_fixed),
        "vs_none": least(to_none),
        "vs_per_batch": least({cell[:2]: cell.ratio(PER_REQUEST, PER_BATCH) for cell in cells}),
        "mixed_gain": best.ratio(PER_REQUEST, PER_BATCH),
        "mixed_gain_bound": 1.0 / best.served[PER_BATCH].of_best,
        "mixed_gain_concurrency": best.slots,
        "regret_mean": mean(regrets),
        "regret_worst": max(regrets),
        "wrong_cost_vs_best_fixed": least(
            {cell[:2]: cell.served[WRONG].to_best_fixed for cell in cells}
        ),
        "wrong_cost_vs_none": least({cell[:2]: cell.served[WRONG].to_none for cell in cells}),
        "worst_vs_best_fixed": min(to_fixed.values()),
        "worst_vs_none": min(to_none.values()),
    }
    worst = max(cells, key=lambda cell: 1.0 - cell.served[PER_REQUEST].of_best)
    rounded: Figures = {name: round(value, 4) for name, value in figures.items()}
    return {**rounded, "regret_worst_at": f"{worst.load}, {worst.slots}"}


def by_concurrency(cells: Iterable[Cell]) -> dict[int, Figures]:
    """Return tokens per second relative to no speculation: means over loads, by policy."""
    rows: dict[int, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.slots, []).append(cell)
    return {slots: _relative_to_none(row) for slots, row in rows.items()}


def _relative_to_none(row: Sequence[Cell]) -> Figures:
    one = [cell.served[PER_REQUEST] for cell in row]
    figures = {
        name: geometric_mean([cell.served[name].to_none for cell in row])
        for name in row[0].served
        if name != WRONG
    }
    figures["best fixed"] = max(
        geometric_mean([served.fixed_to_none(depth) for served in one]) for depth in range(1, 8)
    )
    figures["best fixed per load and batch"] = geometric_mean(
        [served.to_none / served.to_best_fixed for served in one]
    )
    figures["clairvoyant"] = geometric_mean([served.to_none / served.of_best for served in one])
    mixed = next(cell for cell in row if cell.load == MIXED)
    figures["mixed: per request to per batch"] = mixed.ratio(PER_REQUEST, PER_BATCH)
    figures["mixed: clairvoyant to per batch"] = 1.0 / mixed.served[PER_BATCH].of_best
    return {name: round(value, 4) for name, value in figures.items()}


def _serve_all(costs: Costs, extent: Extent, load: str, slots: int, seed: int) -> dict[str, Served]:
    steps = extent.steps(slots)
    traffic = next(one for one in all_traffic(slots, steps) if one.name == load)
    names = (PER_REQUEST, PER_BATCH, WRONG, *RIVAL_BUDGETS)
    builds = all_budgets()
    return {name: serve(builds[name](costs.profile, seed), traffic, costs, seed) for name in names}


def _published(costs: Costs, extent: Extent, seed: int) -> dict[int, Figures]:
    """Tokens per second where a publication has them, with a fixed depth and adaptive."""
    found: dict[int, Figures] = {}
    for slots, adaptive in zip(PUBLISHED.concurrency, PUBLISHED.adaptive, strict=True):
        kinds = PUBLISHED_SHARE, PUBLISHED_GOOD, PUBLISHED_BAD
        traffic = published_traffic(slots, extent.steps(slots), *kinds)
        served = serve(all_budgets()[PER_REQUEST](costs.profile, seed), traffic, costs, seed)
        rate = served.tokens / served.seconds
        found[slots] = {
            "per_request": round(rate),
            "clairvoyant": round(rate / served.of_best),
            "published_adaptive": adaptive,
        }
    return found
