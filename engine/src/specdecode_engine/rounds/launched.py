"""A step's round in flight, with what it was launched for and under."""

from typing import NamedTuple

from specdecode_engine.depth.decision import Decision
from specdecode_engine.rounds.pending import PendingRound
from specdecode_engine.rounds.timing import Timing


class Launched(NamedTuple):
    """An extend round, or a decode round with the decision it runs under; made in every step."""

    pending: PendingRound | None  # None for an extend round of which nothing is told
    timing: Timing
    table: str  # hash of the one in force when it was launched
    decision: Decision | None = None
    kv_tokens: int = 0  # of a decode round's batch when it began
    prompt_tokens: int = 0  # of an extend round
    is_alone: bool = True  # False where both kinds shared a pass

    @property
    def decode_rounds(self) -> int:
        """How many decode rounds it counts as: one or none."""
        return int(self.decision is not None)
