"""What a round needs of a drafter."""

from collections.abc import Sequence as Items
from typing import Protocol

from torch import Tensor

from specdecode_engine.slots import DecodeBatch, Span


class Drafter(Protocol):
    """Proposes draft tokens.

    Life of a slot: `open`, then `follow` for every prompt span, then in any order `propose` and
    `observe` rounds (rounds without `propose` leave the draft behind; the next `propose` catches
    up), then `open` again for the next sequence.
    """

    @property
    def capture(self) -> tuple[int, ...]:
        """Output ids of the target layers whose values `follow` and `observe` need; () for none."""
        ...

    def open(self, slot: int) -> None:
        """Forget what was known of a slot."""
        ...

    def follow(self, spans: Items[Span], features: Tensor | None) -> None:
        """Take up prompt spans that the target has just computed.

        Args:
            spans: consecutive per slot from 0 on.
            features: [rows of all spans, width], or None where `capture` is ().
        """
        ...

    def propose(self, batch: DecodeBatch, num_steps: int) -> Tensor:
        """Return [B, num_steps] i64 draft tokens that continue each bonus token; num_steps >= 1."""
        ...

    def observe(self, batch: DecodeBatch, num_rows: int, features: Tensor | None) -> None:
        """Take up what the target computed at positions length .. length + num_rows - 1.

        Args:
            features: [B * num_rows, width], or None where `capture` is ().
        """
        ...
