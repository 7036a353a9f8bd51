"""Builds a table from the best draft steps of each batch bucket; the rest stays as it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from specdecode_api.metrics import BATCH_BUCKETS
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry

GOOD_ENOUGH = 0.9
"""Share of the best rate that draft steps need to stay candidates of policy goodput."""
MOST_BELOW = 3
"""Candidates of policy ema below the best draft steps."""


@dataclass(frozen=True, slots=True)
class Current:
    """The present policy, entries, draft steps at start, which `static` keeps, and drafts.

    `drafted` is the tokens that a request drafts, by draft steps; those of a chain by default.
    """

    policy: Policy
    entries: Mapping[str, TableEntry]
    num_steps: int
    drafted: Callable[[int], int] = int

    def candidates(self, batch_size: int) -> tuple[int, ...]:
        """Draft steps that may be chosen for a batch, ascending."""
        entry = self.entry(batch_size)
        return (self.num_steps,) if entry is None else tuple(sorted(entry.candidate_steps))

    def entry(self, batch_size: int) -> TableEntry | None:
        """The entry for a batch; None without a table."""
        bounds = sorted(self.entries, key=int)
        below = [bound for bound in bounds if int(bound) <= batch_size]
        return self.entries[below[-1] if below else bounds[0]] if bounds else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits of a recommendation.

    `prepared_steps` are the draft steps that engines can run: their memory was checked before.
    """

    prepared_steps: frozenset[int]
    least_gain: float = 0.03  # with less, a batch bucket stays as it is
    largest_batch: int = field(default=BATCH_BUCKETS[-1])


def entries_of(
    current: Current,
    rates: Mapping[int, Mapping[int, float]],
    best: Mapping[int, int],
    bounds: Bounds,
) -> dict[str, TableEntry]:
    """Build the entries.

    Args:
        rates: tokens per second by draft steps, of the measured batch buckets.
        best: the best draft steps of the batch buckets that should change.
    """
    entries: dict[str, TableEntry] = {}
    latest: TableEntry | None = None
    for bucket in _starts(current, bounds):
        within = max(each for each in BATCH_BUCKETS if each <= bucket)
        entry = current.entry(bucket) or TableEntry(candidate_steps=(current.num_steps,))
        if within in best:
            steps = _candidates(current.policy, rates[within], best[within], bounds)
            entry = _with_steps(entry, steps, current.drafted)
        entry = entry.model_copy(update={"candidate_steps": tuple(sorted(entry.candidate_steps))})
        if entry != latest:
            entries[str(bucket)] = latest = entry
    return entries


def _with_steps(
    entry: TableEntry, steps: tuple[int, ...], drafted: Callable[[int], int]
) -> TableEntry:
    """The entry with other candidates; without `verify_tokens` that none of them drafts."""
    verified = entry.verify_tokens
    if verified is not None and verified > max(map(drafted, steps)):
        verified = None
    return entry.model_copy(update={"candidate_steps": steps, "verify_tokens": verified})


def _starts(current: Current, bounds: Bounds) -> Sequence[int]:
    """Bounds of the ranges: those of batch buckets and those of the present table."""
    own = {int(bound) for bound in current.entries}
    return sorted(size for size in {*BATCH_BUCKETS, *own} if size <= bounds.largest_batch)


def _candidates(
    policy: Policy, rates: Mapping[int, float], best: int, bounds: Bounds
) -> tuple[int, ...]:
    """One number of draft steps for a fixed policy; those near the best if a policy chooses."""
    if policy is Policy.STATIC:
        return (best,)
    if policy is Policy.EMA:
        below = sorted(steps for steps in bounds.prepared_steps if steps < best)
        return (*below[-MOST_BELOW:], best)
    near = {steps for steps, rate in rates.items() if rate >= GOOD_ENOUGH * rates[best]}
    # 0 stays a candidate if it was one, in case the draft becomes useless.
    return tuple(sorted({best, *near, *({0} & bounds.prepared_steps)}))
