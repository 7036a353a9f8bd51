"""How one forward pass sees cached keys and values: it writes its own, then attends."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from specdecode_engine.model.kv_cache import DraftScratch, KVCache
from specdecode_kernels import AttentionMetadata, TreeKV


class KVView(Protocol):
    """The cache as one batch of query rows sees it, the same for every layer."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's k and v where they belong, then attend; all [rows, heads, dim]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PagedView:
    """Prefill, extend and verify: every query row has a pool row of its own."""

    pool: KVCache
    slot_mapping: Tensor  # [rows] i64: the pool row of each query row
    layout: AttentionMetadata

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write to the pool, attend within it."""
        self.pool.store(layer, self.slot_mapping, k, v)
        return self.pool.attend(layer, q, self.layout)


@dataclass(frozen=True, slots=True, eq=False)
class TreeView:
    """Verifying a tree: every node has a pool row, and sees the prefix and its own ancestors.

    `layout` shows the committed prefix; nodes of one request see one another by `ancestry`.
    """

    pool: KVCache
    slot_mapping: Tensor  # [batch * nodes] i64: the pool row of each node
    layout: AttentionMetadata
    ancestry: Tensor  # [batch, nodes, nodes] bool

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write to the pool, attend to the prefix there and to the nodes at hand."""
        self.pool.store(layer, self.slot_mapping, k, v)
        # A chain reads its own rows from the pool. A tree must see the same numbers.
        k, v = self.pool.as_stored(layer, self.slot_mapping, k, v)
        shape = (*self.ancestry.shape[:2], *k.shape[1:])
        tree_kv = TreeKV(k.reshape(shape), v.reshape(shape), self.ancestry)
        return self.pool.attend(layer, q, self.layout, tree_kv)


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

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write to the scratch, attend to the prefix and to what the mask shows."""
        batch = len(self.layout.qo_lens)
        end = self.first + q.shape[0] // batch
        shape = (batch, -1, *k.shape[1:])
        self.scratch.k[layer, :batch, self.first : end] = k.view(shape)
        self.scratch.v[layer, :batch, self.first : end] = v.view(shape)
        mask = self.mask
        if mask is None:
            mask = self.scratch.all_shown[:batch, :, :end]
        k, v = self.scratch.k[layer, :batch, :end], self.scratch.v[layer, :batch, :end]
        return self.pool.attend(layer, q, self.layout, TreeKV(k, v, mask))
