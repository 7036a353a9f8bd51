"""The figures for people: shares with their standard errors, and whether the aims are met."""

import math

from rollout.figures import Figures

MOST_FALSE, LEAST_FOUND, MOST_BROKEN_REQUESTS = 0.02, 0.95, 100.0


def header(scenario: str) -> str:
    """Captions of a scenario's rows."""
    columns = ("rolled back", "promoted", "gain 5 %", "loss 5 %", "requests", "broken", "regret")
    captions = " ".join(f"{column:>12}" for column in columns)
    wrong = f"{'':28} {'wrongly':>12} {'wrongly':>12} {'promoted':>12} {'caught':>12}"
    return f"\n{scenario:28} {captions}\n{wrong}"


def row(name: str, figures: Figures) -> str:
    """One way of finding out; a star marks what misses its aim."""
    shares = (
        (figures.false_rollback, figures.false_rollback <= MOST_FALSE),
        (figures.false_promotion, figures.false_promotion <= MOST_FALSE),
        (figures.promoted_gain5, figures.promoted_gain5 >= LEAST_FOUND),
        (figures.caught_loss5, figures.caught_loss5 >= LEAST_FOUND),
    )
    cells = " ".join(f"{_share(share, figures.runs, met):>12}" for share, met in shares)
    requests = _count(figures.median_requests, True)
    is_quick = figures.broken_draft_requests is not None and (
        figures.broken_draft_requests <= MOST_BROKEN_REQUESTS
        and figures.caught_broken >= LEAST_FOUND
    )
    broken = _count(figures.broken_draft_requests, is_quick)
    return f"{name:28} {cells} {requests:>12} {broken:>12} {figures.regret_requests:12.0f}"


def is_met(figures: Figures) -> bool:
    """Whether every aim is met."""
    return "*" not in row("", figures)


def _share(share: float, runs: int, is_met: bool) -> str:
    # Two more of either kind, or shares of 0 and 1 would claim to be exact.
    near = (share * runs + 2.0) / (runs + 4.0)
    error = math.sqrt(near * (1.0 - near) / (runs + 4.0))
    return f"{100 * share:.1f}±{100 * error:.1f}%{' ' if is_met else '*'}"


def _count(count: float | None, is_met: bool) -> str:
    return ("-" if count is None else f"{count:.0f}") + (" " if is_met else "*")
