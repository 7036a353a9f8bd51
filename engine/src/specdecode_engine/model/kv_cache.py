"""Keys and values: the paged pool of all requests, a draft's scratch, and views of both.

A view is how one forward pass sees them: for every layer it writes its own rows, then attends.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdecode_kernels import (
    DEFAULT_ATTENTION,
    TORCH,
    AttentionMetadata,
    AttentionParams,
    Backend,
    KvScale,
    LayerKV,
    TreeKV,
)


class KVCache:
    """Pages of keys and values, all layers; page 0 belongs to nobody and takes padding rows.

    The cache knows how it is written and read: its backend and, where it is float8, its scales.
    """

    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
        *,
        ops: Backend = TORCH,
        scale: KvScale | None = None,
    ) -> None:
        """Allocate `pages` pages, page 0 included."""
        if pages < 2:
            raise ValueError(f"a pool of {pages} pages holds nothing besides page 0; give it 2")
        self.pages = pages
        self.page_size = page_size
        self.ops = ops
        shape = (layers, pages * page_size, kv_heads, head_dim)
        # [layers, rows, kv_heads, dim]
        self.k, self.v = (_zeros(shape, dtype, device) for _ in range(2))
        # Views, created once: every layer of every forward pass uses its own.
        self._layers = tuple(
            LayerKV(k, v, scale or KvScale())
            for k, v in zip(self.k.unbind(), self.v.unbind(), strict=True)
        )

    def store(self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
        """Write k and v [n, kv_heads, dim] to the rows slot_mapping [n] i64 of a layer."""
        self.ops.store_kv(self._layers[layer], slot_mapping, k, v)

    def as_stored(
        self, layer: int, slot_mapping: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return k and v as they are read back from the rows where they were just stored.

        They are unchanged except in float8 pools, which hold them rounded.
        """
        if self.k.dtype == k.dtype:
            return k, v
        return self.ops.load_kv(self._layers[layer], slot_mapping, k.dtype)

    def clear(self, slot_mapping: Tensor) -> None:
        """Make the rows slot_mapping [n] i64 of every layer zero."""
        for rows in (self.k, self.v):
            bits = rows.view(torch.uint8) if rows.dtype.itemsize == 1 else rows
            bits.index_fill_(1, slot_mapping, 0)

    def attend(
        self,
        layer: int,
        q: Tensor,
        layout: AttentionMetadata,
        tree_kv: TreeKV | None,
        params: AttentionParams,
    ) -> Tensor:
        """Attend from q [rows, q_heads, dim] to what is shown of a layer, and to tree KV."""
        return self.ops.attend(q, self._layers[layer], layout, tree_kv, params)

    @staticmethod
    def bytes_per_page(
        layers: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Size of one page, keys and values of all layers."""
        return 2 * layers * page_size * kv_heads * head_dim * dtype.itemsize


class DraftScratch:
    """Keys and values of drafted tokens, by index in the batch; kept out of the pool.

    They are never rounded to the pool's type: nothing reads them after the step.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        rows: int,
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = (layers, batch, rows, kv_heads, head_dim)
        # [layers, batch, rows, kv_heads, dim]
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        # [batch, 1, rows] bool, for query rows that see all there is
        self.all_shown = torch.ones((batch, 1, rows), dtype=torch.bool, device=device)


class KVView(Protocol):
    """The cache as one batch of query rows sees it, the same for every layer."""

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
    ) -> Tensor:
        """Write this layer's k and v where they belong, then attend; all [rows, heads, dim].

        The head size of v, and of what is returned, may differ from that of q and k.
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

    def attend(
        self,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        params: AttentionParams = DEFAULT_ATTENTION,
    ) -> Tensor:
        self.pool.store(layer, self.slot_mapping, k, v)
        if self.ancestry is None:
            return self.pool.attend(layer, q, self.layout, None, params)
        # A chain reads its own rows from the pool. A tree must see the same numbers.
        k, v = self.pool.as_stored(layer, self.slot_mapping, k, v)
        k, v = (rows.reshape(*self.ancestry.shape[:2], *rows.shape[1:]) for rows in (k, v))
        return self.pool.attend(layer, q, self.layout, TreeKV(k, v, self.ancestry), params)


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
    ) -> Tensor:
        batch = len(self.layout.qo_lens)
        end = self.first + q.shape[0] // batch
        self.scratch.k[layer, :batch, self.first : end] = k.view(batch, -1, *k.shape[1:])
        self.scratch.v[layer, :batch, self.first : end] = v.view(batch, -1, *v.shape[1:])
        mask = self.mask
        if mask is None:
            mask = self.scratch.all_shown[:batch, :, :end]
        k, v = self.scratch.k[layer, :batch, :end], self.scratch.v[layer, :batch, :end]
        return self.pool.attend(layer, q, self.layout, TreeKV(k, v, mask), params)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype.itemsize == 1:  # as bits: no device fills float8
        return torch.zeros(shape, dtype=torch.uint8, device=device).view(dtype)
    return torch.zeros(shape, dtype=dtype, device=device)
