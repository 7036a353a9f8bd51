"""Which pairs are captured at start, which at their first use, which never: by bytes and seconds.

Small batches are chosen first: there a graph saves most, since launching takes most of a round, and
costs least. What was chosen is captured largest first, so that the memory pool grows once and every
later graph finds its place in it.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from enum import StrEnum

from specdecode_engine.graph_plan.costs import Cost
from specdecode_engine.graph_plan.passes import PassShape
from specdecode_engine.graph_plan.plan import Pair

_NOTHING = Cost()


class Verdict(StrEnum):
    """When a pair is captured."""

    NOW = "now"
    LAZY = "lazy"  # at its first use
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that capturing may take; None is no limit."""

    max_bytes: int | None = None
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Ruling:
    """What becomes of a pair, and why where it is not captured at once."""

    pair: Pair
    verdict: Verdict
    reason: str = ""


def rule(
    pairs: Mapping[Pair, tuple[PassShape, ...]],
    cost_of: Callable[[PassShape], Cost],
    shared_bytes: Callable[[Iterable[PassShape]], int],
    budget: Budget,
    spent: Cost = _NOTHING,
    captured: Set[PassShape] = frozenset(),
) -> tuple[Ruling, ...]:
    """Decide for every pair; largest first, in the order in which they are captured.

    Args:
        cost_of: cost of a pass, as far as it is known.
        shared_bytes: bytes of what these passes share, as far as it is not in `spent`.
        spent: what has been spent already.
        captured: passes that exist already and cost nothing more.
    """
    rulings = {}
    known = set(captured)
    for pair in sorted(pairs, key=lambda pair: _rows(pairs[pair])):
        missing = [one for one in pairs[pair] if one not in known]
        growth = shared_bytes(known.union(missing)) - shared_bytes(known)
        cost = sum((cost_of(one) for one in missing), Cost(growth))
        ruling = _rule_one(pair, cost, budget, spent)
        rulings[pair] = ruling
        if ruling.verdict is Verdict.REFUSED:
            continue
        # What is captured later needs its bytes all the same, but no time at start.
        known |= set(missing)
        seconds = cost.seconds if ruling.verdict is Verdict.NOW else 0.0
        spent += Cost(cost.num_bytes, seconds)
    order = sorted(pairs, key=lambda pair: _rows(pairs[pair]), reverse=True)
    return tuple(rulings[pair] for pair in order)


def _rule_one(pair: Pair, cost: Cost, budget: Budget, spent: Cost) -> Ruling:
    total = spent + cost
    if cost.num_bytes and budget.max_bytes is not None and total.num_bytes > budget.max_bytes:
        left = max(budget.max_bytes - spent.num_bytes, 0)
        return Ruling(
            pair,
            Verdict.REFUSED,
            f"{pair} needs {_mib(cost.num_bytes)} and {_mib(left)} of graphs.max_bytes are left; "
            "it runs without a graph: raise graphs.max_bytes or give fewer graphs.batch_sizes",
        )
    if cost.seconds and budget.max_seconds is not None and total.seconds > budget.max_seconds:
        return Ruling(
            pair,
            Verdict.LAZY,
            f"{pair} would take the capture to {total.seconds:.1f} s of graphs.max_seconds "
            f"{budget.max_seconds:g}; it is captured when it is first used",
        )
    return Ruling(pair, Verdict.NOW)


def _rows(passes: tuple[PassShape, ...]) -> tuple[int, tuple[PassShape, ...]]:
    """Order pairs by their largest pass."""
    return max(one.total_rows for one in passes), passes


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
