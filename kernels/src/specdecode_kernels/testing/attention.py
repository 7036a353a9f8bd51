"""Random arguments for attention, for tests: shuffled pages, poison in every row that is unseen."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor

from specdecode_kernels.backend import TORCH, Backend
from specdecode_kernels.metadata import (
    DEFAULT_ATTENTION,
    FLOAT8,
    AttentionMetadata,
    AttentionParams,
    KvScale,
    LayerKV,
    TreeKV,
)
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
    v_dim: int | None = None  # head size of values, that of keys unless given
    is_latent: bool = False  # values are the first entries of keys
    tree_rows: int = 0
    dtype: torch.dtype = torch.float32
    pool_dtype: torch.dtype | None = None  # that of the queries, unless given
    is_causal: bool = False  # each row sees one more than the one before it
    is_strided: bool = False  # tensors lie with gaps, heads before rows
    params: AttentionParams = DEFAULT_ATTENTION
    has_sinks: bool = False  # drawn, one for each query head


@dataclass(frozen=True, slots=True, eq=False)
class AttentionArgs:
    """The arguments of one call."""

    q: Tensor
    kv: LayerKV
    metadata: AttentionMetadata
    tree_kv: TreeKV | None
    params: AttentionParams = DEFAULT_ATTENTION

    def to(self, device: torch.device) -> "AttentionArgs":
        metadata, tree_kv, sinks = self.metadata, self.tree_kv, self.params.sinks
        return AttentionArgs(
            self.q.to(device),
            _kv_of(self.kv.k.to(device), self.kv.v.to(device), self.kv.scale, self.kv.is_latent),
            replace(
                metadata,
                page_table=metadata.page_table.to(device),
                kv_lens=metadata.kv_lens.to(device),
            ),
            tree_kv and TreeKV(*(tensor.to(device) for tensor in tree_kv)),
            replace(self.params, sinks=None if sinks is None else sinks.to(device)),
        )

    def attend(self, backend: Backend = TORCH) -> Tensor:
        return checked(backend).attend(*self._arguments)

    def attend_with_lse(self, backend: Backend = TORCH) -> tuple[Tensor, Tensor]:
        return checked(backend).attend_with_lse(*self._arguments)

    @property
    def _arguments(
        self,
    ) -> tuple[Tensor, LayerKV, AttentionMetadata, TreeKV | None, AttentionParams]:
        return self.q, self.kv, self.metadata, self.tree_kv, self.params


def draw_case(shape: Shape, seed: int) -> AttentionArgs:
    """Fill a shape with normal numbers; rows that no one sees hold NaN, page 0 among them."""
    generator = torch.Generator().manual_seed(seed)
    chance, draw = random.Random(seed), _Draw(generator, shape.dtype, shape.is_strided)
    metadata = _draw_metadata(shape, chance)
    pool_rows = (1 + metadata.page_table.numel()) * shape.page_size
    dims = shape.dim, shape.v_dim or shape.dim
    k_pool, v_pool = (draw.normal(pool_rows, shape.kv_heads, dim) for dim in dims)
    scale = KvScale()
    if shape.pool_dtype == FLOAT8:
        scale = KvScale(0.5, 0.5 if shape.is_latent else 0.25)
        k_pool = (k_pool.float() / scale.k).to(FLOAT8)
        v_pool = (v_pool.float() / scale.v).to(FLOAT8)
    q = draw.normal(sum(shape.qo_lens), shape.kv_heads * shape.shared, shape.dim)
    tree_kv = _draw_tree_kv(shape, draw) if shape.tree_rows else None
    params = shape.params
    if shape.has_sinks:
        params = replace(params, sinks=torch.randn(q.shape[1], generator=generator) * 2)
    kv = _kv_of(k_pool, v_pool, scale, shape.is_latent)
    case = AttentionArgs(q, kv, metadata, tree_kv, params)
    _poison_unseen(case)
    return case


def _kv_of(k: Tensor, v: Tensor, scale: KvScale, is_latent: bool) -> LayerKV:
    return LayerKV(k, k[..., : v.shape[2]] if is_latent else v, scale, is_latent)


def seen_rows(case: AttentionArgs) -> list[tuple[list[int], list[int]]]:
    """List, for every query row, the pool rows and the tree rows that it attends to."""
    listed = []
    for request, begin, end, in_tree in _seen_ranges(case):
        listed.append((_pool_rows(case.metadata, request, begin, end), in_tree))
    return listed


def _seen_ranges(case: AttentionArgs) -> Iterator[tuple[int, int, int, list[int]]]:
    """Yield the request of every query row, the range of positions that it sees, and tree rows."""
    metadata, tree_kv = case.metadata, case.tree_kv
    owners = [(b, i) for b, count in enumerate(metadata.qo_lens) for i in range(count)]
    for (b, query), kv_len in zip(owners, metadata.kv_lens.tolist(), strict=True):
        in_tree = [] if tree_kv is None else tree_kv.tree_mask[b, query].nonzero()[:, 0].tolist()
        skipped = _unattended(kv_len + len(in_tree), case.params)
        yield b, min(skipped, kv_len), kv_len, in_tree[max(0, skipped - kv_len) :]


def _unattended(seen: int, params: AttentionParams) -> int:
    if params.attention_chunk_size is not None:
        return max(0, seen - 1) // params.attention_chunk_size * params.attention_chunk_size
    return 0 if params.sliding_window is None else max(0, seen - params.sliding_window)


def _pool_rows(metadata: AttentionMetadata, request: int, begin: int, end: int) -> list[int]:
    pages, size = metadata.page_table[request].tolist(), metadata.page_size
    return [pages[i // size] * size + i % size for i in range(begin, end)]


def _poison_unseen(case: AttentionArgs) -> None:
    """Write NaN over the rows of the pool and of tree KV that no query row may read.

    Of the pool, a request's rows may read those from the first that one of them sees to the last.
    """
    readable, is_seen = set[int](), torch.zeros(0, dtype=torch.bool)
    if case.tree_kv is not None:
        is_seen = torch.zeros(case.tree_kv.k.shape[:2], dtype=torch.bool)
    for request, rows in groupby(_seen_ranges(case), key=itemgetter(0)):
        _, begins, ends, in_tree = zip(*rows, strict=True)
        readable |= set(_pool_rows(case.metadata, request, min(begins), max(ends)))
        for seen in in_tree:
            if seen:
                is_seen[request, seen] = True
    unseen = sorted(set(range(len(case.kv.k))) - readable)
    for pool in (case.kv.k, case.kv.v):
        if pool.dtype == FLOAT8:
            pool.view(torch.uint8)[unseen] = 0x7F  # NaN
        else:
            pool[unseen] = torch.nan
    if case.tree_kv is not None:
        case.tree_kv.k[~is_seen], case.tree_kv.v[~is_seen] = torch.nan, torch.nan


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
    dims = shape.dim, shape.v_dim or shape.dim
    k, v = (draw.normal(batch, shape.tree_rows, shape.kv_heads, dim) for dim in dims)
    if shape.is_latent:
        v = k[..., : dims[1]]
    mask = draw.normal(batch, queries, shape.tree_rows) < -0.5
    return TreeKV(k, v, mask)
