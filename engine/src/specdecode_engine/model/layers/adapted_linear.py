"""Linear maps and embeddings with LoRA adapters: each row has its own adapter, or none.

A row is computed by the calls that it would get alone, so that it does not depend on the adapters
of other rows: the base's map for all rows, then two maps for the rows of each adapter.

On a GPU a map's instructions follow from a row's place in its prompt (RowSplit), which belongs to
all rows of a forward: before adapters run there, it has to be cut to the rows of each adapter too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from torch import Tensor
from torch.nn import functional

from specdecode_engine.model.layers.layers import Linear


class AdapterRows(NamedTuple):
    """The rows of a forward that one adapter changes."""

    slot: int
    rows: Tensor | slice | None  # [n] i64, or a range of them; None: all rows


@dataclass(slots=True, eq=False)
class ActiveAdapters:
    """Which adapters change which rows of the forward that is being launched."""

    groups: tuple[AdapterRows, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class LowRankMap:
    """What one adapter adds to the output of a map, in float32 or wider; the scale is in `b`."""

    a: Linear  # [rank, inputs]
    b: Linear  # [outputs, rank]

    def added(self, out: Tensor, x: Tensor) -> Tensor:
        """Add to out [rows, outputs] for x [rows, inputs]; the sum is rounded once."""
        dtype = self.a.weight.dtype
        return (out.to(dtype) + self.b(self.a(x.to(dtype)))).to(out.dtype)


@dataclass(frozen=True, slots=True, eq=False)
class LowRankEmbedding:
    """What one adapter adds to the embeddings of tokens; the scale is in `b`."""

    a: Tensor  # [vocab, rank]
    b: Linear  # [hidden, rank]

    def added(self, out: Tensor, ids: Tensor) -> Tensor:
        """Add to out [rows, hidden] for ids [rows] i64."""
        delta = self.b(functional.embedding(ids, self.a))
        return (out.to(delta.dtype) + delta).to(out.dtype)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class AdaptedLinear(Linear):
    """A linear map to whose rows the active adapters add theirs."""

    active: ActiveAdapters
    by_slot: Sequence[LowRankMap | None]

    @classmethod
    def of(cls, base: Linear, active: ActiveAdapters, by_slot: Sequence[LowRankMap | None]) -> Self:
        """Use the weight of `base`."""
        return cls(base.ops, base.weight, base.bias, active=active, by_slot=by_slot)

    def __call__(self, x: Tensor) -> Tensor:
        return _add(self.ops.linear(x, self.weight, self.bias), x, self.active, self.by_slot)


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedEmbedding:
    """Adds what the active adapters add to embeddings."""

    active: ActiveAdapters
    by_slot: Sequence[LowRankEmbedding | None]

    def __call__(self, out: Tensor, ids: Tensor) -> Tensor:
        """Add to out [rows, hidden] for ids [rows] i64, in place where rows differ."""
        return _add(out, ids, self.active, self.by_slot)


def _add(
    out: Tensor,
    x: Tensor,
    active: ActiveAdapters,
    by_slot: Sequence[LowRankMap | LowRankEmbedding | None],
) -> Tensor:
    for slot, rows in active.groups:
        one = by_slot[slot]
        if one is None:
            continue
        if rows is None:
            return one.added(out, x)
        out[rows] = one.added(out[rows], x[rows])
    return out
