"""What a round needs of a drafter."""

from collections.abc import Sequence as Items
from typing import Protocol

from torch import Tensor

from specdecode_engine.draft import Draft
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.forward.eagle_head import Capture
from specdecode_engine.slots import DecodeBatch, Span


class Drafter(Protocol):
    """Proposes draft tokens.

    `lookahead` counts the tokens behind position i that the draft's row i is computed from.

    Life of a slot: `open`, then `follow` for every prompt span, then in any order `propose` and
    `observe` rounds (rounds without `propose` leave the draft behind; the next `propose` catches
    up), then `open` again for the next sequence.
    """

    @property
    def lookahead(self) -> int:
        """0 or 1."""
        ...

    @property
    def capture(self) -> Capture:
        """What `follow` and `observe` need of the target."""
        ...

    def open(self, slot: int, rows: int) -> None:
        """Forget what was known of a slot; its first `rows` rows are there and are not written."""
        ...

    def is_whole(self, slot: int) -> bool:
        """Whether every row up to the latest `propose` holds what `follow` would have computed."""
        ...

    def follow(self, spans: Items[Span], features: Tensor | None) -> None:
        """Take up prompt spans that the target has just computed.

        Args:
            spans: consecutive per slot, from the rows on that `open` was told.
            features: [rows of all spans, width], or None where `capture` is empty.
        """
        ...

    def propose(self, batch: DecodeBatch, shape: DraftShape) -> Draft:
        """Draft behind each bonus token, in ids of the target; `shape.num_steps` >= 1."""
        ...

    def observe(self, batch: DecodeBatch, num_rows: int, features: Tensor | None) -> None:
        """Take up what a round committed at positions length .. length + num_rows - 1.

        Args:
            num_rows: the widest path of the round; a sequence may have accepted less, what stands
                behind that means nothing.
            features: [B, num_rows, width] along the accepted path; None where `capture` is empty.
        """
        ...
