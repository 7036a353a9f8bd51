"""What a policy decides, what comes back of it, and the protocol between the two."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Protocol

from specdecode_engine.depth.ranges import DepthTable
from specdecode_engine.depth.routing import Routing


class Reason(StrEnum):
    """Why a round runs at its depth."""

    STATIC = "static"  # the depth at start, as far as the range allows it
    START = "start"  # nothing has been learned in this range yet
    RISE = "rise"
    FALL = "fall"
    CEILING = "ceiling"
    PROBE = "probe"  # to learn, not because it is thought to be best
    KEEP = "keep"  # nothing is better by enough


class Decision(NamedTuple):
    """The depth of one decode round, and who chose it; a tuple, as every round makes one.

    `slot` is the lower bound of the batch-size range that decided. `sequence` numbers a policy's
    decisions; a result that carries a number of before a reload belongs to another table.
    """

    num_steps: int
    slot: int
    sequence: int
    reason: Reason


class Feedback(NamedTuple):
    """What became of one decode round; a tuple, as every round makes one.

    `accepted` holds the accepted draft tokens of each request that goes on: one that ended in the
    round, was cut or left says nothing about the draft. All of them are at most the decision's
    `num_steps`, and one that equals it may have wanted more.
    """

    decision: Decision
    batch_size: int  # requests in the round, ended ones included
    kv_tokens: int  # tokens with KV over all of them when the round began
    accepted: tuple[int, ...]
    seconds: float  # that the round was worked on, drafting included
    is_alone: bool = True  # False where prompts shared its pass: its time says nothing of a depth


@dataclass(frozen=True, slots=True)
class RangeState:
    """What a policy knows about one range, for people and metrics."""

    slot: int
    candidate_steps: tuple[int, ...]
    num_steps: int
    reason: Reason
    ema: float | None = None  # accepted draft tokens, policy ema
    survival: tuple[float, ...] = ()  # chance that position 1, 2, … is accepted, policy goodput
    tokens_per_second: Mapping[int, float] = field(default_factory=dict)  # expected, by depth


class TableRefused(Exception):
    """A table needs what was not prepared at start; the message says what, and to restart."""


class DepthPolicy(Protocol):
    """Chooses the depth of a round for the batch that is about to decode."""

    @property
    def table(self) -> DepthTable:
        """The ranges that it chooses in."""
        ...

    @property
    def routing(self) -> Routing:
        """Which range decides for a batch."""
        ...

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Choose for a batch of at least one request; see `Feedback.kv_tokens`."""
        ...

    def observe(self, feedback: Feedback) -> None:
        """Learn from a finished round; what does not match the present state is dropped."""
        ...

    def reload(self, table: DepthTable) -> None:
        """Take up another table; what was learned stays as far as it still means something."""
        ...

    def states(self) -> tuple[RangeState, ...]:
        """Describe every range, ascending."""
        ...
