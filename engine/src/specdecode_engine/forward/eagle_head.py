"""What every generation of EAGLE head offers to its drafter."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdecode_engine.forward.kv_view import KvView


@dataclass(frozen=True, slots=True)
class Capture:
    """Which of the target's values a draft reads, per row.

    `layers` names layers whose output is wanted, side by side; `final` asks for the last hidden
    state instead, after the final norm. Neither means that nothing is kept for the draft.
    """

    layers: tuple[int, ...] = ()
    final: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the draft reads nothing of the target."""
        return not self.layers and not self.final

    def pick(self, last: Tensor, captured: Tensor | None) -> Tensor | None:
        """Choose among what a forward pass leaves; None where nothing is read."""
        return last if self.final else captured

    def width(self, hidden_size: int) -> int:
        """Features per row of a target of that hidden size."""
        return hidden_size * (1 if self.final else len(self.layers))


@dataclass(frozen=True, slots=True, eq=False)
class DraftHidden:
    """What a head leaves per row, both [rows, hidden]."""

    normed: Tensor  # what `logits` takes
    recurrent: Tensor  # what the `hidden` of the next row is


class EagleHead(Protocol):
    """One decoder layer over pairs of a hidden state and the token behind it."""

    @property
    def capture(self) -> Capture:
        """What the head reads of the target."""
        ...

    @property
    def draft_to_target(self) -> Tensor | None:
        """[draft_vocab] i64, the target's id of every draft id; None where they are the same."""
        ...

    def fuse(self, features: Tensor) -> Tensor:
        """Map captured features [rows, width] to hidden states [rows, hidden]."""
        ...

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KvView) -> DraftHidden:
        """Run rows: ids [rows] i64 of the target's vocabulary, hidden [rows, hidden]."""
        ...

    def logits(self, normed: Tensor) -> Tensor:
        """Score the draft's vocabulary: [rows, draft_vocab] float."""
        ...
