"""Where keys and values live: the paged pool of all requests, and a draft's own scratch."""

import torch


class KvPool:
    """Pages of keys and values, all layers; page 0 belongs to nobody and takes padding rows.

    `poison` fills the pool with NaN instead of zeros: whoever reads a row that nobody wrote then
    shows it.
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
        poison: bool = False,
    ) -> None:
        """Allocate `pages` pages, page 0 included."""
        if pages < 2:
            raise ValueError(f"a pool of {pages} pages holds nothing besides page 0; give it 2")
        self.pages = pages
        self.page_size = page_size
        shape = (layers, pages * page_size, kv_heads, head_dim)
        fill = torch.nan if poison else 0.0
        # [layers, rows, kv_heads, dim]
        self.k = torch.full(shape, fill, dtype=dtype, device=device)
        self.v = torch.full(shape, fill, dtype=dtype, device=device)

    @staticmethod
    def bytes_per_page(
        layers: int, page_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """Size of one page, keys and values of all layers."""
        return 2 * layers * page_size * kv_heads * head_dim * dtype.itemsize


class DraftScratch:
    """Keys and values of what a draft proposes, by place in the batch; kept out of the pool."""

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
