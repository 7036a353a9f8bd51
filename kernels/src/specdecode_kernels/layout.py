"""Which cached rows every query row sees: the records that `attend` takes beside its tensors."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class AttentionLayout:
    """Which cached rows every query row sees.

    Pool row = page id * page size + offset. Query rows are concatenated request by request. Query
    row i sees the first `visible[i]` rows of its own request; seeing none is legal and yields
    zeros. `max_visible` is a bound that the host knows, so that no kernel has to ask the device: a
    layout that a CUDA graph holds gives the bound of all its replays, and tensors that are
    refilled.
    """

    page_table: Tensor  # [batch, pages] i64, padding entries 0
    page_size: int
    query_lens: tuple[int, ...]  # query rows of each request
    visible: Tensor  # [rows] i64; causal extension: position + 1
    max_visible: int
    # [batch + 1] i64, where each request's rows begin; asked for on the device where requests
    # differ in query rows, and copied there by each call that finds none
    query_starts: Tensor | None = None

    @property
    def queries_each(self) -> int | None:
        """Query rows of every request, if all have the same number; none for an empty batch."""
        return self.query_lens[0] if len(set(self.query_lens)) == 1 else None

    def __post_init__(self) -> None:
        if self.page_table.dim() != 2 or self.page_table.dtype != torch.int64:
            raise ValueError(
                f"page_table must be [batch, pages] int64, "
                f"not {list(self.page_table.shape)} {self.page_table.dtype}"
            )
        batch, pages = self.page_table.shape
        if len(self.query_lens) != batch or min(self.query_lens, default=0) < 0:
            raise ValueError(
                f"query_lens {self.query_lens} must be one number >= 0 for each of the "
                f"{batch} requests in page_table"
            )
        if self.visible.shape != (sum(self.query_lens),) or self.visible.dtype != torch.int64:
            raise ValueError(
                f"visible must be int64, one for each of the {sum(self.query_lens)} query rows, "
                f"not {list(self.visible.shape)} {self.visible.dtype}"
            )
        if self.page_size < 1 or not 0 <= self.max_visible <= pages * self.page_size:
            raise ValueError(
                f"max_visible {self.max_visible} must lie within the {pages} pages of "
                f"{self.page_size} rows that page_table holds per request; widen page_table"
            )
        starts = self.query_starts
        if starts is not None and (starts.shape != (batch + 1,) or starts.dtype != torch.int64):
            raise ValueError(
                f"query_starts must be int64, one for each of the {batch} requests and the end, "
                f"not {list(starts.shape)} {starts.dtype}"
            )


@dataclass(frozen=True, slots=True)
class KvScale:
    """What the entries of float8 pools are multiplied by when read; 1 for every other type."""

    k: float = 1.0
    v: float = 1.0

    def __post_init__(self) -> None:
        if not all(0 < scale < math.inf for scale in (self.k, self.v)):
            raise ValueError(f"scales of keys and values must be positive and finite, not {self}")


@dataclass(frozen=True, slots=True, eq=False)
class Tail:
    """Rows outside the pool that requests see besides it: a draft's scratch, the nodes of a tree.

    Legal only where every request has the same number of query rows.
    """

    k: Tensor  # [batch, tail_rows, kv_heads, dim]
    v: Tensor  # [batch, tail_rows, kv_heads, dim]
    mask: Tensor  # [batch, queries_per_request, tail_rows] bool

    def __post_init__(self) -> None:
        if self.k.dim() != 4 or self.v.shape != self.k.shape:
            raise ValueError(
                f"a tail's k and v must both be [batch, tail_rows, kv_heads, dim], "
                f"not {list(self.k.shape)} and {list(self.v.shape)}"
            )
        batch, tail_rows = self.k.shape[:2]
        fits = self.mask.dim() == 3 and self.mask.shape[::2] == (batch, tail_rows)
        if not fits or self.mask.dtype != torch.bool:
            raise ValueError(
                f"a tail's mask must be [{batch}, queries, {tail_rows}] bool, "
                f"not {list(self.mask.shape)} {self.mask.dtype}"
            )
