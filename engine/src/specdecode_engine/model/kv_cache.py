"""Where keys and values live: the paged pool of all requests, and a draft's own scratch."""

import torch
from torch import Tensor

from specdecode_kernels import (
    TORCH,
    AttentionMetadata,
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
        """Answer k and v as whoever reads the rows that were just stored will see them.

        They are k and v themselves but for float8 pools, which hold them rounded.
        """
        if self.k.dtype == k.dtype:
            return k, v
        return self.ops.load_kv(self._layers[layer], slot_mapping, k.dtype)

    def attend(
        self, layer: int, q: Tensor, layout: AttentionMetadata, tree_kv: TreeKV | None = None
    ) -> Tensor:
        """Attend from q [rows, q_heads, dim] to what is shown of a layer, and to tree KV."""
        return self.ops.attend(q, self._layers[layer], layout, tree_kv)

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
        """Allocate `rows` rows for each of `batch` requests."""
        shape = (layers, batch, rows, kv_heads, head_dim)
        # [layers, batch, rows, kv_heads, dim]
        self.k = torch.zeros(shape, dtype=dtype, device=device)
        self.v = torch.zeros(shape, dtype=dtype, device=device)
        # [batch, 1, rows] bool, for query rows that see all there is
        self.all_shown = torch.ones((batch, 1, rows), dtype=torch.bool, device=device)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    if dtype.itemsize == 1:  # as bits: no device fills float8
        return torch.zeros(shape, dtype=torch.uint8, device=device).view(dtype)
    return torch.zeros(shape, dtype=dtype, device=device)
