"""The interface between an EAGLE head of any generation and its drafter."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdecode_engine.model.kv_views import KVView


@dataclass(frozen=True, slots=True)
class AuxHiddenStates:
    """Which hidden states of the target a draft reads, per row.

    `layers` names layers whose outputs are read, concatenated; `final` selects the last hidden
    state instead, after the final norm. With neither the draft reads no hidden state.
    """

    layers: tuple[int, ...] = ()
    final: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the draft reads no hidden state of the target."""
        return not self.layers and not self.final

    def select(self, last: Tensor, of_layers: Tensor | None) -> Tensor | None:
        """Select from the results of a forward; None where nothing is read."""
        return last if self.final else of_layers

    def width(self, hidden_size: int) -> int:
        """Values per row of a target of that hidden size."""
        return hidden_size * (1 if self.final else len(self.layers))


@dataclass(frozen=True, slots=True, eq=False)
class DraftHidden:
    """What a head leaves per row, both [rows, hidden]."""

    normed: Tensor  # what `logits` takes
    recurrent: Tensor  # what the `hidden` of the next row is


class EagleHead(Protocol):
    """One decoder layer over pairs of a hidden state and the token after it."""

    @property
    def aux_spec(self) -> AuxHiddenStates:
        """The target's hidden states that the head reads."""
        ...

    @property
    def draft_to_target(self) -> Tensor | None:
        """[draft_vocab] i64, the target's id of every draft id; None where they are the same."""
        ...

    def fuse(self, aux_hidden_states: Tensor) -> Tensor:
        """Map aux hidden states [rows, width] to hidden states [rows, hidden]."""
        ...

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, kv: KVView) -> DraftHidden:
        """Run rows: ids [rows] i64 of the target's vocabulary, hidden [rows, hidden]."""
        ...

    def logits(self, normed: Tensor) -> Tensor:
        """Score the draft's vocabulary: [rows, draft_vocab] float."""
        ...
