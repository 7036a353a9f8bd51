"""Random arguments for attention, for tests: shuffled pages, poison in every row that is unseen."""

import random
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from specdecode_kernels.backend import TORCH, Backend
from specdecode_kernels.metadata import FLOAT8, AttentionMetadata, KvScale, LayerKV, TreeKV
from specdecode_kernels.testing.checked import checked

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where kernels are tested: on CPU they have to be interpreted, with TRITON_INTERPRET set."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a case; `tree_rows` 0 is without tree KV."""

    qo_lens: tuple[int, ...] = (1, 1)
    longest: int = 20  # rows that a query row sees at most
    page_size: int = 4
    kv_heads: int = 2
    shared: int = 2  # query heads that share a kv head
    dim: int = 16
    tree_rows: int = 0
    dtype: torch.dtype = torch.float32
    pool_dtype: torch.dtype | None = None  # that of the queries, unless given
    is_causal: bool = False  # each row sees one more than the one before it
    is_strided: bool = False  # tensors lie with gaps, heads before rows


@dataclass(frozen=True, slots=True, eq=False)
class AttentionArgs:
    """The arguments of one call."""

    q: Tensor
    kv: LayerKV
    metadata: AttentionMetadata
    tree_kv: TreeKV | None

    def to(self, device: torch.device) -> "AttentionArgs":
        metadata, tree_kv = self.metadata, self.tree_kv
        return AttentionArgs(
            self.q.to(device),
            replace(self.kv, k=self.kv.k.to(device), v=self.kv.v.to(device)),
            replace(
                metadata,
                page_table=metadata.page_table.to(device),
                kv_lens=metadata.kv_lens.to(device),
            ),
            tree_kv and TreeKV(*(tensor.to(device) for tensor in tree_kv)),
        )

    def attend(self, backend: Backend = TORCH) -> Tensor:
        return checked(backend).attend(self.q, self.kv, self.metadata, self.tree_kv)

    def attend_with_lse(self, backend: Backend = TORCH) -> tuple[Tensor, Tensor]:
        return checked(backend).attend_with_lse(self.q, self.kv, self.metadata, self.tree_kv)


def draw_case(shape: Shape, seed: int) -> AttentionArgs:
    """Fill a shape with normal numbers; rows that no one sees hold NaN, page 0 among them."""
    generator = torch.Generator().manual_seed(seed)
    chance, draw = random.Random(seed), _Draw(generator, shape.dtype, shape.is_strided)
    metadata = _draw_metadata(shape, chance)
    pool_rows = (1 + metadata.page_table.numel()) * shape.page_size
    k_pool, v_pool = (draw.normal(pool_rows, shape.kv_heads, shape.dim) for _ in range(2))
    scale = KvScale()
    if shape.pool_dtype == FLOAT8:
        scale = KvScale(0.5, 0.25)
        k_pool = (k_pool.float() / scale.k).to(FLOAT8)
        v_pool = (v_pool.float() / scale.v).to(FLOAT8)
    unseen = sorted(set(range(pool_rows)) - {row for rows in seen_rows(metadata) for row in rows})
    for pool in (k_pool, v_pool):
        if shape.pool_dtype == FLOAT8:
            pool.view(torch.uint8)[unseen] = 0x7F  # NaN
        else:
            pool[unseen] = torch.nan
    q = draw.normal(sum(shape.qo_lens), shape.kv_heads * shape.shared, shape.dim)
    tree_kv = _draw_tree_kv(shape, draw) if shape.tree_rows else None
    return AttentionArgs(q, LayerKV(k_pool, v_pool, scale), metadata, tree_kv)


def seen_rows(metadata: AttentionMetadata) -> list[list[int]]:
    """List, for every query row, the pool rows that it sees."""
    owners = [b for b, count in enumerate(metadata.qo_lens) for _ in range(count)]
    size = metadata.page_size
    return [
        [int(metadata.page_table[b, i // size]) * size + i % size for i in range(int(seen))]
        for b, seen in zip(owners, metadata.kv_lens, strict=True)
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


def _draw_metadata(shape: Shape, chance: random.Random) -> AttentionMetadata:
    batch = len(shape.qo_lens)
    pages = -(-shape.longest // shape.page_size)
    page_ids = chance.sample(range(1, 1 + batch * pages), batch * pages)
    table = torch.tensor(page_ids, dtype=torch.int64).view(batch, pages)
    if shape.is_strided:
        table = table.repeat(1, 2)[:, :pages]
    return AttentionMetadata(
        page_table=table,
        page_size=shape.page_size,
        qo_lens=shape.qo_lens,
        kv_lens=torch.tensor(_draw_visible(shape, chance), dtype=torch.int64),
        max_kv_len=shape.longest,
    )


def _draw_visible(shape: Shape, chance: random.Random) -> list[int]:
    if not shape.is_causal:
        return [chance.randint(0, shape.longest) for _ in range(sum(shape.qo_lens))]
    ends = [chance.randint(count, shape.longest) for count in shape.qo_lens]
    spans = zip(shape.qo_lens, ends, strict=True)
    return [seen for count, end in spans for seen in range(end - count + 1, end + 1)]


def _draw_tree_kv(shape: Shape, draw: _Draw) -> TreeKV:
    batch, queries = len(shape.qo_lens), max(shape.qo_lens)
    k, v = (draw.normal(batch, shape.tree_rows, shape.kv_heads, shape.dim) for _ in range(2))
    mask = draw.normal(batch, queries, shape.tree_rows) < -0.5
    # Rows of the mask after a request's last query row mean nothing.
    is_query = torch.arange(queries) < torch.tensor(shape.qo_lens)[:, None]
    unseen = ~(mask & is_query[:, :, None]).any(dim=1)
    k[unseen], v[unseen] = torch.nan, torch.nan
    return TreeKV(k, v, mask)
