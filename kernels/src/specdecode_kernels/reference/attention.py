"""Attention over paged keys and values: gather the pages, mask, one softmax.

Consecutive requests with the same number of query rows are one batched computation, so a decode or
verify batch is a single one. Long prompts are cut into slices of query rows, to bound the scores.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from specdecode_kernels.layout import AttentionLayout, KvScale, Tail
from specdecode_kernels.reference.pool import dequantised
from specdecode_kernels.reference.precision import accumulation_dtype, mixing_dtype

MAX_SCORES = 1 << 24
"""Scores computed at once: 128 MiB of float64."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive requests with equally many query rows."""

    requests: slice
    rows: slice
    batch: int
    queries: int


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What the requests of a run see, gathered: pool rows first, then the tail's."""

    q: Tensor  # [batch, queries, q_heads, dim]
    k: Tensor  # [batch, rows, kv_heads, dim]
    v: Tensor  # [batch, rows, kv_heads, dim]
    mask: Tensor  # [batch, queries, rows] bool


def attend(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    layout: AttentionLayout,
    tail: Tail | None,
    scale: KvScale,
) -> Tensor:
    """Compute run by run; with a tail there is at most one run."""
    output = torch.empty_like(q)
    for run in equal_runs(layout.query_lens):
        seen = _gather(run, q, k_pool, v_pool, layout, tail, scale)
        mixed = _sliced_attention(seen.q, seen.k, seen.v, seen.mask)
        output[run.rows] = mixed.flatten(0, 1)
    return output


def attend_with_lse(
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    layout: AttentionLayout,
    tail: Tail | None,
    scale: KvScale,
) -> tuple[Tensor, Tensor]:
    """Attend, and work the scores out once more for the logarithm of the sum of their exponents."""
    lse = torch.empty(q.shape[:2], dtype=accumulation_dtype(q.dtype), device=q.device)
    for run in equal_runs(layout.query_lens):
        seen = _gather(run, q, k_pool, v_pool, layout, tail, scale)
        lse[run.rows] = _sliced_lse(seen).flatten(0, 1).to(lse.dtype)
    return attend(q, k_pool, v_pool, layout, tail, scale), lse


def equal_runs(query_lens: tuple[int, ...]) -> Iterator[Run]:
    """Cut a batch into runs of consecutive requests with equally many query rows."""
    request = row = 0
    for queries, members in groupby(query_lens):
        batch = sum(1 for _ in members)
        next_request, next_row = request + batch, row + batch * queries
        if queries:
            yield Run(slice(request, next_request), slice(row, next_row), batch, queries)
        request, row = next_request, next_row


def _gather(
    run: Run,
    q: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    layout: AttentionLayout,
    tail: Tail | None,
    scale: KvScale,
) -> _Seen:
    k = dequantised(_gather_rows(k_pool, layout, run.requests), scale.k, mixing_dtype(q.dtype))
    v = dequantised(_gather_rows(v_pool, layout, run.requests), scale.v, mixing_dtype(q.dtype))
    visible = layout.visible[run.rows].view(run.batch, run.queries, 1)
    mask = torch.arange(k.shape[1], device=k.device) < visible
    if tail is not None:
        k = torch.cat((k, tail.k.to(k.dtype)), dim=1)
        v = torch.cat((v, tail.v.to(v.dtype)), dim=1)
        mask = torch.cat((mask, tail.mask), dim=2)
    queries = q[run.rows].reshape(run.batch, run.queries, *q.shape[1:])
    return _Seen(queries, k, v, mask)


def _gather_rows(pool: Tensor, layout: AttentionLayout, requests: slice) -> Tensor:
    # [batch, max_visible, kv_heads, dim]
    pages = -(-layout.max_visible // layout.page_size)
    paged = pool.view(-1, layout.page_size, *pool.shape[1:])
    gathered = paged[layout.page_table[requests, :pages]]  # [batch, pages, page_size, ...]
    return gathered.flatten(1, 2)[:, : layout.max_visible]


def _sliced_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    wide = mixing_dtype(q.dtype)
    keys, values = _by_head(k, wide), _by_head(v, wide)
    # 0 * NaN is NaN: values that nobody sees must be zeroed, their weight of 0 is not enough.
    unseen = ~mask.any(dim=1)[:, None, :, None]  # [batch, 1, rows, 1]
    values = values.masked_fill(unseen, 0.0)
    slices = [
        _masked_attention(part.to(wide), keys, values, shown) for part, shown in _slices(q, mask)
    ]
    return torch.cat(slices, dim=1).to(q.dtype)


def _sliced_lse(seen: _Seen) -> Tensor:
    wide = mixing_dtype(seen.q.dtype)
    keys = _by_head(seen.k, wide)
    slices = [
        _masked_scores(part.to(wide), keys, shown).logsumexp(dim=-1).permute(0, 3, 1, 2).flatten(2)
        for part, shown in _slices(seen.q, seen.mask)
    ]
    return torch.cat(slices, dim=1)  # [batch, queries, q_heads]


def _slices(q: Tensor, mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    step = max(1, MAX_SCORES // max(1, q.shape[0] * q.shape[2] * mask.shape[2]))
    return zip(torch.split(q, step, dim=1), torch.split(mask, step, dim=1), strict=True)


def _by_head(x: Tensor, dtype: torch.dtype) -> Tensor:
    # [batch, rows, kv_heads, dim] -> [batch, kv_heads, rows, dim], widened and moved in one copy
    by_head = x.permute(0, 2, 1, 3)
    return by_head.to(dtype, memory_format=torch.contiguous_format).contiguous()


def _masked_scores(q: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
    # [batch, kv_heads, query heads that share one, queries, rows]
    batch, queries, q_heads, dim = q.shape
    kv_heads, rows = keys.shape[1:3]
    shared = q_heads // kv_heads
    folded = q.reshape(batch, queries, kv_heads, shared, dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, kv_heads, shared * queries, dim)
    scores = torch.matmul(folded / math.sqrt(dim), keys.transpose(2, 3))
    scores = scores.view(batch, kv_heads, shared, queries, rows)
    return scores.masked_fill_(~mask[:, None, None], -torch.inf)


def _masked_attention(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    batch, queries, q_heads, dim = q.shape
    scores = _masked_scores(q, keys, mask)
    weights = scores.softmax(dim=-1).flatten(2, 3)
    mixed = torch.matmul(weights, values).view(*scores.shape[:-1], dim)
    mixed = mixed.permute(0, 3, 1, 2, 4).reshape(batch, queries, q_heads, dim)
    # The softmax of a row that sees nothing is NaN.
    return mixed.masked_fill_(~mask.any(dim=2)[:, :, None, None], 0.0)
