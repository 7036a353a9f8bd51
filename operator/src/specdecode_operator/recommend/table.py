"""From the best depth of each band to a table: few ranges, nothing new where nothing is known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specdecode_api.metrics import BATCH_BUCKETS
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry

GOOD_ENOUGH = 0.9
"""Part of the best rate that a depth must bring to stay a candidate of policy goodput."""
MOST_BELOW = 3
"""Candidates of policy ema below the best depth."""


@dataclass(frozen=True, slots=True)
class Current:
    """What decides now: policy, entries, and the depth at start, which `static` keeps to."""

    policy: Policy
    entries: Mapping[str, TableEntry]
    num_steps: int

    def candidates(self, batch_size: int) -> tuple[int, ...]:
        """Depths that may be chosen for a batch, ascending."""
        entry = self.entry(batch_size)
        return (self.num_steps,) if entry is None else tuple(sorted(entry.candidate_steps))

    def entry(self, batch_size: int) -> TableEntry | None:
        """The entry that decides for a batch; None without a table."""
        bounds = sorted(self.entries, key=int)
        below = [bound for bound in bounds if int(bound) <= batch_size]
        return self.entries[below[-1] if below else bounds[0]] if bounds else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What may be recommended.

    `depths` are those that engines have prepared, or may prepare: memory is checked before.
    """

    depths: frozenset[int]
    least_gain: float = 0.03  # below it, what a band does now is left as it is
    largest_batch: int = field(default=BATCH_BUCKETS[-1])


def entries_of(
    current: Current,
    rates: Mapping[int, Mapping[int, float]],
    best: Mapping[int, int],
    bounds: Bounds,
) -> dict[str, TableEntry]:
    """Write the table.

    Args:
        rates: of measured bands, tokens per second by depth.
        best: of the bands that should change, the best depth; the others stay as they are.
    """
    entries: dict[str, TableEntry] = {}
    latest: TableEntry | None = None
    for band in _starts(current, bounds):
        within = max(each for each in BATCH_BUCKETS if each <= band)
        entry = current.entry(band) or TableEntry(candidate_steps=(current.num_steps,))
        if within in best:
            steps = _candidates(current.policy, rates[within], best[within], bounds)
            entry = entry.model_copy(update={"candidate_steps": steps})
        entry = entry.model_copy(update={"candidate_steps": tuple(sorted(entry.candidate_steps))})
        if entry != latest:
            entries[str(band)] = latest = entry
    return entries


def _starts(current: Current, bounds: Bounds) -> Sequence[int]:
    """Where something may begin to be different: at a band, or at a range of today's table."""
    own = {int(bound) for bound in current.entries}
    return sorted(size for size in {*BATCH_BUCKETS, *own} if size <= bounds.largest_batch)


def _candidates(
    policy: Policy, rates: Mapping[int, float], best: int, bounds: Bounds
) -> tuple[int, ...]:
    """One depth where it is kept to; those that come near where a policy is to choose."""
    if policy is Policy.STATIC:
        return (best,)
    if policy is Policy.EMA:
        below = sorted(steps for steps in bounds.depths if steps < best)
        return (*below[-MOST_BELOW:], best)
    near = {steps for steps, rate in rates.items() if rate >= GOOD_ENOUGH * rates[best]}
    # Plain decoding stays a way out where it was one: no draft can become useless by surprise.
    return tuple(sorted({best, *near, *({0} & bounds.depths)}))
