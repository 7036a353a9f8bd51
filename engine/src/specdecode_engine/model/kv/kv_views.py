"""How one forward sees keys and values: for every layer it writes its own rows, then attends."""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from specdecode_engine.model.kv.delta_states import DeltaView
from specdecode_engine.model.kv.draft_scratch import DraftScratch
from specdecode_engine.model.kv.kv_cache import KVCache, PlacedRows, RotaryRows
from specdecode_kernels import (
    DEFAULT_ATTENTION,
    AttentionMetadata,
    AttentionParams,
    FusedKV,
    FusedRows,
    TreeKV,
)

FusibleRows = tuple[FusedRows, Items[FusedKV]]


class KVView(Protocol):
    """The cache as one batch of query rows sees it, the same for every layer."""

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
        rotary: RotaryRows | None = None,
    ) -> Tensor:
        """Write this layer's k and v where they belong, then attend; all [rows, heads, dim].

        The head size of v, and of what is returned, may differ from that of q and k. `rotary` turns
        q and k first, as by `Backend.apply_rope`.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PagedView:
    """Every query row has a pool row of its own.

    Without `ancestry` a row sees what `layout` shows of the pool, its own row included: prefill and
    verifying chains. With it the rows are the nodes of trees: `layout` shows the committed prefix,
    and the nodes of one request see one another by `ancestry`.
    """

    pool: KVCache
    slot_mapping: Tensor  # [rows] i64: the pool row of each query row
    layout: AttentionMetadata
    ancestry: Tensor | None = None  # [batch, nodes, nodes] bool
    node_rows: Tensor | None = None  # [batch, nodes] i64: rows of the nodes, if not all have one
    delta: DeltaView | None = None  # how the rows see states, in a model with recurrent layers
    _placed: tuple[PlacedRows, PlacedRows] = field(init=False)

    def __post_init__(self) -> None:
        placed = self.pool.place(self.slot_mapping, self.layout)
        object.__setattr__(self, "_placed", placed)

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
        rotary: RotaryRows | None = None,
    ) -> Tensor:
        slot_mapping, layout = self._placed[self.pool.in_windows(layer)]
        if rotary is None:
            self.store(layer, k, v)
        else:
            q, k = self.turn_and_store(layer, q, k, v, rotary)
        if self.ancestry is None:
            return self.pool.attend(layer, q, layout, None, params)
        # A chain reads its own rows from the pool. A tree must see the same numbers.
        k, v = self.pool.as_stored(layer, slot_mapping, k, v)
        tree_kv = TreeKV(self._by_node(k), self._by_node(v), self.ancestry)
        return self.pool.attend(layer, q, layout, tree_kv, params)

    def fusible(self, layers: range) -> FusibleRows | None:
        """Return how one call computes the first of `layers`, and as many after it as it can.

        None where an op may do more: layers without keys and values of their own, and a cache whose
        backend does not fuse layers.
        """
        kvs = self.pool.fusible_kvs(layers)
        if not kvs:
            return None
        slots, layout = self._placed[self.pool.in_windows(layers.start)]
        nodes = None if self.ancestry is None else self.node_rows
        return FusedRows(layout, slots, self.ancestry, nodes), kvs

    def store(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write a layer's k and v [rows, heads, dim]."""
        slot_mapping, _ = self._placed[self.pool.in_windows(layer)]
        self.pool.store(layer, slot_mapping, k, v)

    def turn_and_store(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, rotary: RotaryRows
    ) -> tuple[Tensor, Tensor]:
        """Turn q and k by their rows' angles, write k and v, and return q and k."""
        slot_mapping, _ = self._placed[self.pool.in_windows(layer)]
        return self.pool.turn_and_store(layer, slot_mapping, q, k, v, rotary)

    def _by_node(self, rows: Tensor) -> Tensor:
        """Arrange rows [rows, heads, dim] as [batch, nodes, heads, dim]."""
        if self.node_rows is not None:
            return rows[self.node_rows]
        assert self.ancestry is not None
        return rows.reshape(*self.ancestry.shape[:2], *rows.shape[1:])


@dataclass(frozen=True, slots=True, eq=False)
class BorrowedView:
    """Query rows of layers without keys and values, each of which reads a layer of another model.

    Nothing is written; a row sees what `layout` shows of the pool.
    """

    pool: KVCache
    owners: Items[int]  # of each layer, the one of the pool that it reads
    layout: AttentionMetadata
    _placed: tuple[AttentionMetadata, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_placed", self.pool.place_layout(self.layout))

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
        rotary: RotaryRows | None = None,
    ) -> Tensor:
        if rotary is not None:
            q, _ = self.pool.ops.apply_rope(q, k, *rotary)
        owner = self.owners[layer]
        layout = self._placed[self.pool.in_windows(owner)]
        return self.pool.attend(owner, q, layout, None, params)


@dataclass(frozen=True, slots=True, eq=False)
class ScratchView:
    """One step of drafting: query rows are kept in the scratch, from row `first` on.

    `layout` describes the committed prefix in the pool. `mask` selects the scratch rows, up to the
    newest, that each query row sees; without it, a chain's single query row sees all of them.
    """

    pool: KVCache
    scratch: DraftScratch
    first: int
    layout: AttentionMetadata
    mask: Tensor | None = None  # [batch, queries, first + queries] bool

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
        rotary: RotaryRows | None = None,
    ) -> Tensor:
        if rotary is not None:
            q, k = self.pool.ops.apply_rope(q, k, *rotary)
        batch = len(self.layout.qo_lens)
        k, v = self.scratch.store(layer, self.first, batch, k, v)
        mask = self.mask
        if mask is None:
            mask = self.scratch.all_shown[:batch, :, : k.shape[1]]
        return self.pool.attend(layer, q, self.layout, TreeKV(k, v, mask), params)

    def fusible(self, layers: range) -> FusibleRows | None:
        """As `PagedView.fusible`."""
        pool, mask, scratch = self.pool, self.mask, self.scratch
        kvs = pool.fusible_kvs(layers)
        if not kvs or pool.in_windows(layers.start):
            return None
        batch, queries = len(self.layout.qo_lens), self.layout.qo_lens[0]
        if mask is None:
            mask = scratch.all_shown[:batch, :, : self.first + queries]
        rows = FusedRows(self.layout, mask=mask, scratch_rows=scratch.num_rows, first=self.first)
        kept = scratch.layers[layers.start : layers.start + len(kvs)]
        return rows, [FusedKV(one.cache, own) for one, own in zip(kvs, kept, strict=True)]
