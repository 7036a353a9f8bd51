"""Where keys and values live: the paged pool of all requests, and a draft's own scratch."""

import torch
from torch import Tensor

import specdecode_kernels as ops
from specdecode_kernels import TORCH, AttentionBackend, AttentionLayout, KvScale, Tail


class KvPool:
    """Pages of keys and values, all layers; page 0 belongs to nobody and takes padding rows.

    The pool knows how it is written and read: its backend and, where it is float8, its scales.
    `poison` fills it with NaN instead of zeros: whoever reads a row that nobody wrote then shows
    it.
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
        attention: AttentionBackend = TORCH,
        scale: KvScale | None = None,
        poison: bool = False,
    ) -> None:
        """Allocate `pages` pages, page 0 included."""
        if pages < 2:
            raise ValueError(f"a pool of {pages} pages holds nothing besides page 0; give it 2")
        self.pages = pages
        self.page_size = page_size
        self.attention = attention
        self.scale = scale or KvScale()
        shape = (layers, pages * page_size, kv_heads, head_dim)
        # [layers, rows, kv_heads, dim]
        self.k, self.v = (_filled(shape, dtype, device, poison) for _ in range(2))
        # Views, made once: every layer of every pass asks for its own.
        self._layers = tuple(zip(self.k.unbind(), self.v.unbind(), strict=True))

    def store(self, layer: int, rows: Tensor, k: Tensor, v: Tensor) -> None:
        """Write k and v [n, kv_heads, dim] to the rows [n] i64 of a layer."""
        pools = self._layers[layer]
        ops.store_kv(*pools, rows, k, v, scale=self.scale, backend=self.attention)

    def as_stored(self, layer: int, rows: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Answer k and v as whoever reads the rows that were just stored will see them.

        They are k and v themselves but for float8 pools, which hold them rounded.
        """
        if self.k.dtype == k.dtype:
            return k, v
        return ops.load_kv(*self._layers[layer], rows, k.dtype, scale=self.scale)

    def attend(
        self, layer: int, q: Tensor, layout: AttentionLayout, tail: Tail | None = None
    ) -> Tensor:
        """Attend from q [rows, q_heads, dim] to what is shown of a layer, and to a tail."""
        pools = self._layers[layer]
        return ops.attend(q, *pools, layout, tail, scale=self.scale, backend=self.attention)

    @staticmethod
    def bytes_per_page(
        layers: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Size of one page, keys and values of all layers."""
        return 2 * layers * page_size * kv_heads * head_dim * dtype.itemsize


class DraftScratch:
    """Keys and values of what a draft proposes, by place in the batch; kept out of the pool.

    They are never rounded to the pool's type: nobody reads them after the round.
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


def _filled(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, poison: bool
) -> Tensor:
    if dtype.itemsize == 1:  # as bits: no device fills float8
        bits = torch.tensor(torch.nan if poison else 0.0).to(dtype).view(torch.uint8)
        return torch.full(shape, int(bits), dtype=torch.uint8, device=device).view(dtype)
    return torch.full(shape, torch.nan if poison else 0.0, dtype=dtype, device=device)
