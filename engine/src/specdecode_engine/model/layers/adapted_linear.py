"""Linear maps and embeddings with LoRA adapters: each row has its own adapter, or none.

The base maps all rows; then the rows of each adapter get what it adds. A row's numbers do not
depend on the adapters of other rows.

On a GPU a map's instructions follow from a row's place in its prompt (RowSplit), which belongs to
all rows of a forward: before adapters run there, it has to be cut to the rows of each adapter too.
"""

from dataclasses import dataclass
from typing import Self

from torch import Tensor
from torch.nn import functional

from specdecode_engine.model.layers.layers import Linear
from specdecode_kernels import ActiveRows, LowRankMaps


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AdaptedLinear(Linear):
    """A linear map to whose rows the active adapters add theirs."""

    active: ActiveRows
    low_rank: LowRankMaps

    @classmethod
    def of(cls, base: Linear, active: ActiveRows, low_rank: LowRankMaps) -> Self:
        """Use the weight of `base`."""
        return cls(base.ops, base.weight, base.bias, active=active, low_rank=low_rank)

    def __call__(self, x: Tensor) -> Tensor:
        out = self.ops.linear(x, self.weight, self.bias)
        if self.active.rows is None:
            return out
        return self.ops.add_low_rank(out, x, self.low_rank, self.active.rows)


@dataclass(frozen=True, slots=True, eq=False)
class LowRankEmbedding:
    """What one adapter adds to the embeddings of tokens, in float32 or wider; `b` has the scale."""

    a: Tensor  # [vocab, rank]
    b: Linear  # [hidden, rank]

    def added(self, out: Tensor, ids: Tensor) -> Tensor:
        """Add to out [rows, hidden] for ids [rows] i64; the sum is rounded once."""
        delta = self.b(functional.embedding(ids, self.a))
        return (out.to(delta.dtype) + delta).to(out.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedEmbedding:
    """Adds what the active adapters add to embeddings."""

    active: ActiveRows
    by_slot: list[LowRankEmbedding | None]

    def __call__(self, out: Tensor, ids: Tensor) -> Tensor:
        """Add to out [rows, hidden] for ids [rows] i64, in place."""
        rows = self.active.rows
        if rows is None:
            return out
        for slot, first, count in rows.groups.tolist():
            if (one := self.by_slot[slot]) is not None:
                own = rows.rows[first : first + count]
                out[own] = one.added(out[own], ids[own])
        return out
