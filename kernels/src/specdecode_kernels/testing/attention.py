"""Random arguments for attention, for tests: shuffled pages, poison in every row that is unseen."""

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdecode_kernels.backends import TORCH, AttentionBackend
from specdecode_kernels.layout import AttentionLayout, KvScale, Tail
from specdecode_kernels.ops import attend, attend_with_lse
from specdecode_kernels.reference.pool import FLOAT8

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where kernels are tested: on CPU they have to be interpreted, with TRITON_INTERPRET set."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What a case is made of; `tail_rows` 0 is no tail."""

    query_lens: tuple[int, ...] = (1, 1)
    longest: int = 20  # rows that a query row sees at most
    page_size: int = 4
    kv_heads: int = 2
    shared: int = 2  # query heads that share a kv head
    dim: int = 16
    tail_rows: int = 0
    dtype: torch.dtype = torch.float32
    pool_dtype: torch.dtype | None = None  # that of the queries, unless given
    is_causal: bool = False  # each row sees one more than the one before it
    is_strided: bool = False  # tensors lie with gaps, heads before rows


@dataclass(frozen=True, slots=True)
class Case:
    """The arguments of one call."""

    q: Tensor
    k_pool: Tensor
    v_pool: Tensor
    layout: AttentionLayout
    tail: Tail | None
    scale: KvScale

    def to(self, device: torch.device) -> "Case":
        """Move every tensor."""
        layout, tail = self.layout, self.tail
        return Case(
            self.q.to(device),
            self.k_pool.to(device),
            self.v_pool.to(device),
            replace(
                layout,
                page_table=layout.page_table.to(device),
                visible=layout.visible.to(device),
            ),
            tail and Tail(tail.k.to(device), tail.v.to(device), tail.mask.to(device)),
            self.scale,
        )

    def attend(self, backend: AttentionBackend = TORCH) -> Tensor:
        """Call the op."""
        return attend(
            self.q,
            self.k_pool,
            self.v_pool,
            self.layout,
            self.tail,
            scale=self.scale,
            backend=backend,
        )

    def attend_with_lse(self, backend: AttentionBackend = TORCH) -> tuple[Tensor, Tensor]:
        """Call the op."""
        return attend_with_lse(
            self.q,
            self.k_pool,
            self.v_pool,
            self.layout,
            self.tail,
            scale=self.scale,
            backend=backend,
        )


def draw_case(shape: Shape, seed: int) -> Case:
    """Fill a shape with normal numbers; rows that no one sees hold NaN, page 0 among them."""
    generator = torch.Generator().manual_seed(seed)
    chance, draw = random.Random(seed), _Draw(generator, shape.dtype, shape.is_strided)
    layout = _draw_layout(shape, chance)
    pool_rows = (1 + layout.page_table.numel()) * shape.page_size
    k_pool, v_pool = (draw.normal(pool_rows, shape.kv_heads, shape.dim) for _ in range(2))
    scale = KvScale()
    if shape.pool_dtype == FLOAT8:
        scale = KvScale(0.5, 0.25)
        k_pool = (k_pool.float() / scale.k).to(FLOAT8)
        v_pool = (v_pool.float() / scale.v).to(FLOAT8)
    unseen = sorted(set(range(pool_rows)) - {row for rows in seen_rows(layout) for row in rows})
    for pool in (k_pool, v_pool):
        if shape.pool_dtype == FLOAT8:
            pool.view(torch.uint8)[unseen] = 0x7F  # NaN
        else:
            pool[unseen] = torch.nan
    q = draw.normal(sum(shape.query_lens), shape.kv_heads * shape.shared, shape.dim)
    tail = _draw_tail(shape, draw) if shape.tail_rows else None
    return Case(q, k_pool, v_pool, layout, tail, scale)


def seen_rows(layout: AttentionLayout) -> list[list[int]]:
    """List, for every query row, the pool rows that it sees."""
    owners = [b for b, count in enumerate(layout.query_lens) for _ in range(count)]
    size = layout.page_size
    return [
        [int(layout.page_table[b, i // size]) * size + i % size for i in range(int(seen))]
        for b, seen in zip(owners, layout.visible, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Draw:
    generator: torch.Generator
    dtype: torch.dtype
    is_strided: bool

    def normal(self, *shape: int) -> Tensor:
        """Draw numbers; if strided, the first two dimensions lie swapped, with gaps."""
        if not self.is_strided:
            return torch.randn(*shape, generator=self.generator).to(self.dtype)
        first, second, *rest = shape
        lying = torch.randn(second, first + 1, *rest, generator=self.generator).to(self.dtype)
        return lying[:, :first].transpose(0, 1)


def _draw_layout(shape: Shape, chance: random.Random) -> AttentionLayout:
    batch = len(shape.query_lens)
    pages = -(-shape.longest // shape.page_size)
    page_ids = chance.sample(range(1, 1 + batch * pages), batch * pages)
    table = torch.tensor(page_ids, dtype=torch.int64).view(batch, pages)
    if shape.is_strided:
        table = table.repeat(1, 2)[:, :pages]
    return AttentionLayout(
        page_table=table,
        page_size=shape.page_size,
        query_lens=shape.query_lens,
        visible=torch.tensor(_draw_visible(shape, chance), dtype=torch.int64),
        max_visible=shape.longest,
    )


def _draw_visible(shape: Shape, chance: random.Random) -> list[int]:
    if not shape.is_causal:
        return [chance.randint(0, shape.longest) for _ in range(sum(shape.query_lens))]
    ends = [chance.randint(count, shape.longest) for count in shape.query_lens]
    spans = zip(shape.query_lens, ends, strict=True)
    return [seen for count, end in spans for seen in range(end - count + 1, end + 1)]


def _draw_tail(shape: Shape, draw: _Draw) -> Tail:
    batch, queries = len(shape.query_lens), shape.query_lens[0]
    k, v = (draw.normal(batch, shape.tail_rows, shape.kv_heads, shape.dim) for _ in range(2))
    mask = draw.normal(batch, queries, shape.tail_rows) < -0.5
    unseen = ~mask.any(dim=1)
    k[unseen], v[unseen] = torch.nan, torch.nan
    return Tail(k, v, mask)
