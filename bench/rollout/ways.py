"""Ways to find out: a rule, and the pods it is given."""

from collections.abc import Callable
from dataclasses import dataclass

from rollout import rules
from rollout.arrangements import Arrangement, crossover, side_by_side, switchback
from rollout.counters import in_turns_by_ledger
from rollout.rules import Rule


@dataclass(frozen=True, slots=True)
class Way:
    """One row of the table. Ways that share `pods` see the very same runs."""

    name: str
    pods: str
    arrange: Callable[[int], Arrangement]
    rule: Rule


def reported() -> tuple[Way, ...]:
    """The rules of the last line: four pods each."""
    return (
        Way("ours", "four in turns", crossover, rules.in_turns),
        Way("threshold", "two and two", lambda seed: side_by_side(), rules.threshold),
        Way("peeking_z", "two and two", lambda seed: side_by_side(), rules.peeking_z),
    )


def others() -> tuple[Way, ...]:
    """The rivals in turns too, and the operator's judge where four pods cannot take turns."""
    return (
        Way("threshold in turns", "four in turns", crossover, rules.threshold),
        Way("peeking_z in turns", "four in turns", crossover, rules.peeking_z),
        Way(
            "threshold, five minutes",
            "two and two",
            lambda seed: side_by_side(),
            lambda seen: rules.threshold(seen, 5 * rules.WINDOW_SLOTS),
        ),
        Way("ours, by the ledger", "four in turns", crossover, in_turns_by_ledger),
        Way(
            "ours, two pods in turns",
            "two in turns",
            lambda seed: crossover(seed, 2),
            rules.in_turns,
        ),
        Way("ours, switchback of one pod", "one in turns", switchback, rules.in_turns),
        Way(
            "ours, canary of 1 and 1",
            "one and one",
            lambda seed: side_by_side(1, 1),
            rules.side_by_side,
        ),
        Way(
            "ours, canary of 2 and 2",
            "two and two",
            lambda seed: side_by_side(),
            rules.side_by_side,
        ),
        Way(
            "ours, canary of 6 and 2",
            "six and two",
            lambda seed: side_by_side(6, 2),
            rules.side_by_side,
        ),
    )
