"""A forward pass as a function of tensors alone, so that it can be captured once and replayed."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdecode_kernels import AttentionLayout


@dataclass(frozen=True, slots=True, eq=False)
class PassInputs:
    """All that changes between two runs of one pass: n rows for each of B sequences.

    What is None depends on the pass alone, never on the run.
    """

    ids: Tensor  # [B * n] i64
    positions: Tensor  # [B * n] i64, rotary
    layout: AttentionLayout  # n query rows for each sequence
    kv_rows: Tensor | None = None  # [B * n] i64, rows of the pool; None where the scratch is used
    hidden: Tensor | None = None  # [B * n, width]: what each row reads besides its token
    mask: Tensor | None = None  # [B, n, seen] bool: a tree's ancestors
    first: int = 0  # scratch row of the first row

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.layout.query_lens)

    @property
    def rows(self) -> int:
        """Rows per sequence, n."""
        return self.layout.query_lens[0]


@dataclass(frozen=True, slots=True, eq=False)
class PassOutputs:
    """What a pass leaves, good until the next pass of its kind; m is n, or 1 after catching up."""

    logits: Tensor  # [B * m, vocab] f32 or f64
    hidden: Tensor | None = None  # [B * m, width]: features, or what the next row reads


class PassFunction(Protocol):
    """A model with its cache; nothing else is read or written."""

    def __call__(self, inputs: PassInputs) -> PassOutputs:
        """Write the rows' keys and values and compute what comes out."""
        ...
