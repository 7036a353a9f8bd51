"""A forward pass as a function of tensors alone, so that it can be captured once and replayed."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdecode_kernels import AttentionMetadata


@dataclass(frozen=True, slots=True, eq=False)
class ForwardInputs:
    """All that changes between two runs of one pass: n rows for each of B sequences.

    What is None depends on the pass alone, never on the run.
    """

    ids: Tensor  # [B * n] i64
    positions: Tensor  # [B * n] i64, rotary
    layout: AttentionMetadata  # n query rows for each sequence
    slot_mapping: Tensor | None = (
        None  # [B * n] i64, rows of the pool; None where the scratch is used
    )
    hidden: Tensor | None = None  # [B * n, width]: what each row reads besides its token
    mask: Tensor | None = None  # [B, n, seen] bool: a tree's ancestors
    first: int = 0  # scratch row of the first row

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.layout.qo_lens)

    @property
    def rows(self) -> int:
        """Rows per sequence, n."""
        return self.layout.qo_lens[0]


@dataclass(frozen=True, slots=True, eq=False)
class ForwardOutputs:
    """What a pass leaves, good until the next pass of its kind; m is n, or 1 after catching up."""

    logits: Tensor  # [B * m, vocab] f32 or f64
    hidden: Tensor | None = None  # [B * m, width]: aux hidden states, or what the next row reads


class ForwardFunction(Protocol):
    """A model with its cache; nothing else is read or written."""

    def __call__(self, inputs: ForwardInputs) -> ForwardOutputs:
        """Write the rows' keys and values and compute what comes out."""
        ...
