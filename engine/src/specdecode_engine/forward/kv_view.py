"""How one forward pass sees cached keys and values: it writes its own, then attends."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdecode_engine.forward.kv_pool import DraftScratch, KvPool
from specdecode_kernels import AttentionLayout, Tail, attend, store_kv


class KvView(Protocol):
    """The cache as one batch of query rows sees it, the same for every layer."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write this layer's k and v where they belong, then attend; all [rows, heads, dim]."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PagedView:
    """Prefill, extend and verify: every query row has a pool row of its own."""

    pool: KvPool
    rows: Tensor  # [rows] i64: the pool row of each query row
    layout: AttentionLayout

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write to the pool, attend within it."""
        k_pool, v_pool = self.pool.k[layer], self.pool.v[layer]
        store_kv(k_pool, v_pool, self.rows, k, v)
        return attend(q, k_pool, v_pool, self.layout)


@dataclass(frozen=True, slots=True, eq=False)
class ScratchView:
    """Step `step` of drafting a chain: one query row per request, kept in the scratch.

    `layout` shows the committed prefix in the pool; the scratch rows 0..step follow it.
    """

    pool: KvPool
    scratch: DraftScratch
    step: int
    layout: AttentionLayout

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write to row `step` of the scratch, attend to the prefix and the chain so far."""
        batch, seen = q.shape[0], self.step + 1
        self.scratch.k[layer, :batch, self.step] = k
        self.scratch.v[layer, :batch, self.step] = v
        tail = Tail(
            self.scratch.k[layer, :batch, :seen],
            self.scratch.v[layer, :batch, :seen],
            torch.ones((batch, 1, seen), dtype=torch.bool, device=q.device),
        )
        return attend(q, self.pool.k[layer], self.pool.v[layer], self.layout, tail)
