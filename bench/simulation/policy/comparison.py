"""What the policy comes to on one machine, at every concurrency, over loads of unlike requests."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, mean
from typing import NamedTuple

from bench.simulation.policy.chooser import Chooser
from bench.simulation.policy.loads import DEEPEST
from bench.simulation.policy.machines import (
    PUBLISHED,
    PUBLISHED_BAD,
    PUBLISHED_GOOD,
    PUBLISHED_SHARE,
    all_machines,
)
from bench.simulation.policy.policies import GOODPUT, WRONG_COSTS, cost_points, goodput, spoil
from bench.simulation.policy.profiles import Profile
from bench.simulation.policy.rivals.ema_zero_step import ema_zero_step
from bench.simulation.policy.rivals.verify_budget import VerifyBudget
from bench.simulation.policy.service import Costs, Served, Service
from bench.simulation.policy.traffic import (
    CONCURRENCY,
    MIXED,
    Traffic,
    all_traffic,
    published_traffic,
)

MOST_ROWS = max(CONCURRENCY) * (DEEPEST + 1)
MOST_PROMPT_ROWS = 128 * max(CONCURRENCY)
BUDGET, EMA = "stale budget", "ema zero-step"
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


def policy_of(name: str, profile: Profile, seed: int) -> Chooser:
    """Build a policy for a machine."""
    points = cost_points(profile, CONCURRENCY)
    builds: dict[str, Callable[[], Chooser]] = {
        GOODPUT: lambda: goodput(profile, points),
        WRONG_COSTS: lambda: goodput(profile, spoil(points, seed)),
        BUDGET: lambda: VerifyBudget(profile, DEEPEST, MOST_ROWS),
        EMA: ema_zero_step,
    }
    return builds[name]()


def compare(place: int, extent: Extent, seed: int) -> Figures:
    """Compare the policies on the machine at this place of `all_machines`."""
    machine = all_machines()[place]
    costs = Costs(machine, MOST_ROWS + MOST_PROMPT_ROWS)
    cells = [
        Cell(slots, load.name, _serve_all(costs, load, seed))
        for slots in extent.concurrency
        for load in all_traffic(slots, extent.steps(slots))
    ]
    figures = {
        **summary(cells),
        "by_concurrency": by_concurrency(cells),
        "regret_by_load": regret_by_load(cells),
    }
    if machine.drafts_blocks:
        figures["published"] = _published(costs, extent, seed)
    return figures


def summary(cells: Sequence[Cell]) -> Figures:
    """Return the figures of one machine.

    Means over loads, and of those the least over concurrency. Regret is to the best rows for each
    request; `regret_bound` is that of the best number of draft steps for the batch, which no choice
    for a whole batch goes below. `mixed_bound` is what the best rows would gain where they gain
    most.
    """
    worst = min(cells, key=lambda cell: cell.served[GOODPUT].of_best)
    mixed = [cell for cell in cells if cell.load == MIXED]
    most = min(mixed, key=lambda cell: cell.served[GOODPUT].of_best)

    def least(name: str, figure: str) -> float:
        rows = _by_slots(cells).values()
        return min(geometric_mean([getattr(c.served[name], figure) for c in row]) for row in rows)

    figures = {
        "vs_best_fixed": least(GOODPUT, "to_best_fixed"),
        "vs_none": least(GOODPUT, "to_none"),
        "regret_mean": 1.0 - mean(cell.served[GOODPUT].of_best for cell in cells),
        "regret_worst": 1.0 - worst.served[GOODPUT].of_best,
        "regret_bound_mean": 1.0 - mean(cell.served[GOODPUT].batch_of_best for cell in cells),
        "regret_bound_worst": 1.0 - min(cell.served[GOODPUT].batch_of_best for cell in cells),
        "wrong_cost_vs_best_fixed": least(WRONG_COSTS, "to_best_fixed"),
        "wrong_cost_vs_none": least(WRONG_COSTS, "to_none"),
        "worst_vs_none": min(cell.served[GOODPUT].to_none for cell in cells),
        "mixed_bound": 1.0 / most.served[GOODPUT].of_best,
        "mixed_bound_concurrency": most.slots,
    }
    rounded: Figures = {name: round(value, 4) for name, value in figures.items()}
    return {**rounded, "regret_worst_at": f"{worst.load}, {worst.slots}"}


def by_concurrency(cells: Iterable[Cell]) -> dict[int, Figures]:
    """Return tokens per second relative to no speculation: means over loads, by policy."""
    return {slots: _relative_to_none(row) for slots, row in _by_slots(cells).items()}


def regret_by_load(cells: Iterable[Cell]) -> dict[str, Figures]:
    """Return the mean regret of each load, and the part that no choice for the batch avoids."""
    rows: dict[str, list[Served]] = {}
    for cell in cells:
        rows.setdefault(cell.load, []).append(cell.served[GOODPUT])
    return {
        load: {
            "regret": round(1.0 - mean(served.of_best for served in row), 4),
            "bound": round(1.0 - mean(served.batch_of_best for served in row), 4),
        }
        for load, row in rows.items()
    }


def _by_slots(cells: Iterable[Cell]) -> dict[int, list[Cell]]:
    rows: dict[int, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.slots, []).append(cell)
    return rows


def _relative_to_none(row: Sequence[Cell]) -> Figures:
    own = [cell.served[GOODPUT] for cell in row]
    names = (GOODPUT, BUDGET, EMA)
    figures = {name: geometric_mean([cell.served[name].to_none for cell in row]) for name in names}
    for depth in (1, 3, 7):
        figures[f"fixed {depth}"] = geometric_mean([one.fixed_to_none(depth) for one in own])
    best = [one.to_none / one.to_best_fixed for one in own]
    figures["best fixed per load and batch"] = geometric_mean(best)
    figures["best rows per request"] = geometric_mean([one.to_none / one.of_best for one in own])
    return {name: round(value, 4) for name, value in figures.items()}


def _serve_all(costs: Costs, load: Traffic, seed: int) -> dict[str, Served]:
    names = (GOODPUT, WRONG_COSTS, BUDGET, EMA)
    return {name: _serve(name, costs, load, seed) for name in names}


def _serve(name: str, costs: Costs, load: Traffic, seed: int) -> Served:
    return Service(policy_of(name, costs.profile, seed), load, costs, seed).served


def _published(costs: Costs, extent: Extent, seed: int) -> dict[int, Figures]:
    """Tokens per second where a publication has them, with none, a fixed depth and adaptive."""
    found: dict[int, Figures] = {}
    columns = PUBLISHED.concurrency, PUBLISHED.none, PUBLISHED.fixed_7, PUBLISHED.adaptive
    for slots, none, fixed_7, adaptive in zip(*columns, strict=True):
        kinds = PUBLISHED_SHARE, PUBLISHED_GOOD, PUBLISHED_BAD
        load = published_traffic(slots, extent.steps(slots), *kinds)
        served = _serve(GOODPUT, costs, load, seed)
        rate = served.tokens / served.seconds
        found[slots] = {
            GOODPUT: round(rate),
            "best rows per request": round(rate / served.of_best),
            "published none": none,
            "published fixed 7": fixed_7,
            "published adaptive": adaptive,
        }
    return found
