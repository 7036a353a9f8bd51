"""The protocol of policies, a decision before each decode step and feedback after it; `static`."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from specdecode_engine.adaptive.table import BatchRange, PaddedRouting, RangeTable, Routing

log = logging.getLogger(__name__)


class Reason(StrEnum):
    """Why a step runs with its number of draft steps."""

    STATIC = "static"  # the configured draft steps, as far as the range allows them
    START = "start"  # nothing has been learned in this range yet
    RISE = "rise"
    FALL = "fall"
    CEILING = "ceiling"
    PROBE = "probe"  # to learn, not because it is expected to be best
    KEEP = "keep"  # no other candidate is better by enough
    LATENCY = "latency"  # more draft steps would exceed the limit of the step's time
    UNREACHABLE = "unreachable"  # the fastest step is expected to exceed that limit too
    LIMIT = "limit"  # no request can use more: its own limit, or its last tokens
    UNFIT = "unfit"  # the draft does not fit the target; no policy has decided
    UNFIT_PROBE = "unfit_probe"  # to learn whether it does after all

    @property
    def is_of_unfit_draft(self) -> bool:
        return self is Reason.UNFIT or self is Reason.UNFIT_PROBE


class Decision(NamedTuple):
    """The draft steps of one decode step, and the range that chose them; one per step.

    `range_start` is the lower bound of that batch range. `sequence` numbers a policy's decisions;
    a result whose number precedes a reload belongs to another table. `verify_tokens` is that of
    the range.
    """

    num_steps: int
    range_start: int
    sequence: int
    reason: Reason
    verify_tokens: int | None = None


class Feedback(NamedTuple):
    """The result of one decode step; one per step.

    `accepted` contains the accepted draft tokens of each request that continues; a request that
    finished, was cut in the step, or limits its draft steps to fewer does not count. Each is at
    most the decision's `num_steps`, and one that equals it may be censored. `partial` contains
    accepted and drafted positions of continuing requests for which fewer were drafted, as NGRAM
    does: of a request without a draft there is nothing to learn.
    """

    decision: Decision
    batch_size: int  # requests in the step, finished ones included
    kv_tokens: int  # tokens with KV over all of them at the beginning of the step
    accepted: tuple[int, ...]
    seconds: float  # busy time of the step, drafting included
    is_alone: bool = True  # False if a prefill shared its forward: `seconds` is then not used
    partial: tuple[tuple[int, int], ...] = ()
    is_full: bool = True  # False if less was drafted than num_steps allow: `seconds` is not used
    gap_s: float = 0.0  # from the end of the forward before to that of this one; 0 if unknown
    ended: tuple[int, ...] = ()  # decoded tokens of each answer that ended in this step

    @property
    def is_idle(self) -> bool:
        """Whether draft steps proposed nothing that can be learned from, and cost nothing."""
        return not (self.is_full or self.accepted or self.partial)

    def has_cost(self) -> bool:
        """Whether `seconds` is the cost of these draft steps: not shared, positive and finite."""
        is_own = self.is_alone and self.is_full
        return is_own and 0.0 < self.seconds < math.inf  # false for NaN


@dataclass(frozen=True, slots=True)
class RangeState:
    """What a policy has learned about one range, for metrics."""

    range_start: int
    candidate_steps: tuple[int, ...]
    num_steps: int
    reason: Reason
    ema: float | None = None  # accepted draft tokens, policy ema
    survival: tuple[float, ...] = ()  # acceptance rate of position 1, 2, …, policy goodput
    tokens_per_second: Mapping[int, float] = field(default_factory=dict)  # expected, by draft steps


class TableRefused(Exception):
    """A table needs something not prepared at start; the message names it and the remedy."""


def prepared(table: RangeTable, num_steps: Iterable[int], most: int | None) -> RangeTable:
    """Return a table with `most` in place of more draft steps; None: the draft has no limit.

    Args:
        num_steps: the draft steps that were prepared at start.

    Raises:
        TableRefused: the table has others.
    """
    cut, known = table.up_to(most), sorted(num_steps)
    if cut is not table:
        log.warning("the draft drafts %d tokens at most: more draft steps count as %d", most, most)
    unknown = sorted(set(cut.candidates()) - set(known))
    if unknown:
        raise TableRefused(
            f"candidate_steps {unknown} are not among {known}, for which this engine prepared at "
            "start; keep to those, or restart it with the new table"
        )
    return cut


class DraftRefused(Exception):
    """A draft cannot replace the running one; the message has the difference and the remedy.

    Args:
        needs_restart: whether an engine that starts with it may use it.
    """

    def __init__(self, message: str, *, needs_restart: bool = False) -> None:
        super().__init__(message)
        self.needs_restart = needs_restart


StageDraft = Callable[[Path], Iterator[Callable[[], None]]]
"""Reads and verifies the draft in a folder, on any thread. What it returns copies the draft in
pieces: each is called between two steps, before the next one is taken. Raises `DraftRefused`."""


class AdaptivePolicy(Protocol):
    """Chooses the draft steps for the batch that is about to decode, from the range it is in."""

    @property
    def table(self) -> RangeTable: ...

    @property
    def routing(self) -> Routing: ...

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        """Choose for a batch of at least one request; see `Feedback.kv_tokens`.

        Args:
            prefill_s: that chunks of prompts are expected to add to the step.
        """

    def prefill_room_s(self, batch_size: int, kv_tokens: int) -> float:
        """Seconds that chunks of prompts may add to the step of a batch; infinite: any number."""

    def observe(self, feedback: Feedback) -> None:
        """Learn from a finished step; results that do not match the present table are dropped."""

    def reload(self, table: RangeTable) -> None:
        """Replace the table; what was learned is kept as far as it still applies."""

    def forget_draft(self) -> None:
        """Drop what was learned about the draft: it was exchanged. Costs stay, as shapes do."""

    def states(self) -> tuple[RangeState, ...]:
        """Describe every range, ascending."""


class StaticPolicy:
    """Always the draft steps at start, or the `BatchRange.nearest` to them."""

    routing: Routing = PaddedRouting()

    def __init__(self, num_steps: int, table: RangeTable | None = None) -> None:
        self.table = table or RangeTable([BatchRange(1, (num_steps,))])
        self._num_steps = num_steps

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        entry = self.table.range_of(batch_size)
        num_steps = entry.nearest(self._num_steps)
        return Decision(num_steps, entry.lower_bound, 0, Reason.STATIC, entry.verify_tokens)

    def prefill_room_s(self, batch_size: int, kv_tokens: int) -> float:
        return math.inf

    def observe(self, feedback: Feedback) -> None:
        """Learn nothing."""

    def reload(self, table: RangeTable) -> None:
        self.table = table

    def forget_draft(self) -> None:
        """There is nothing to drop."""

    def states(self) -> tuple[RangeState, ...]:
        chosen = [(entry, entry.nearest(self._num_steps)) for entry in self.table.ranges]
        return tuple(
            RangeState(entry.lower_bound, entry.candidate_steps, num_steps, Reason.STATIC)
            for entry, num_steps in chosen
        )
