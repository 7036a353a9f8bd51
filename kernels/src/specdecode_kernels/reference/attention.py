"""Attention over paged keys and values: gather the pages, mask, one softmax.

Consecutive requests with the same number of query rows are one batched computation, so a decode or
verify batch is a single one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from specdecode_kernels.layout import AttentionLayout, Tail
from specdecode_kernels.reference.precision import accumulation_dtype


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive requests with equally many query rows."""

    requests: slice
    rows: slice
    batch: int
    queries: int


def attend(
    q: Tensor, k_pool: Tensor, v_pool: Tensor, layout: AttentionLayout, tail: Tail | None
) -> Tensor:
    """Compute run by run; with a tail there is at most one run."""
    output = torch.empty_like(q)
    for run in _equal_runs(layout.query_lens):
        # [batch, rows, kv_heads, dim] and [batch, queries, rows]
        k, v = (_gather(pool, layout, run.requests) for pool in (k_pool, v_pool))
        visible = layout.visible[run.rows].view(run.batch, run.queries, 1)
        mask = torch.arange(k.shape[1], device=k.device) < visible
        if tail is not None:
            k, v = torch.cat((k, tail.k), dim=1), torch.cat((v, tail.v), dim=1)
            mask = torch.cat((mask, tail.mask), dim=2)
        queries = q[run.rows].reshape(run.batch, run.queries, *q.shape[1:])
        output[run.rows] = _masked_attention(queries, k, v, mask).flatten(0, 1)
    return output


def _equal_runs(query_lens: tuple[int, ...]) -> Iterator[_Run]:
    request = row = 0
    for queries, members in groupby(query_lens):
        batch = sum(1 for _ in members)
        next_request, next_row = request + batch, row + batch * queries
        if queries:
            yield _Run(slice(request, next_request), slice(row, next_row), batch, queries)
        request, row = next_request, next_row


def _gather(pool: Tensor, layout: AttentionLayout, requests: slice) -> Tensor:
    pages = -(-layout.max_visible // layout.page_size)
    paged = pool.view(-1, layout.page_size, *pool.shape[1:])
    gathered = paged[layout.page_table[requests, :pages]]  # [batch, pages, page_size, ...]
    return gathered.flatten(1, 2)[:, : layout.max_visible]


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    # q [batch, queries, q_heads, dim]; k, v [batch, rows, kv_heads, dim]
    # mask [batch, queries, rows]
    batch, queries, q_heads, dim = q.shape
    rows, kv_heads = k.shape[1:3]
    shared = q_heads // kv_heads  # query heads that share one kv head
    wide = accumulation_dtype(q.dtype)
    # [batch, kv_heads, shared * queries, dim]
    folded = q.reshape(batch, queries, kv_heads, shared, dim).permute(0, 2, 3, 1, 4)
    folded = folded.to(wide).reshape(batch, kv_heads, shared * queries, dim)
    scores = torch.matmul(folded, k.to(wide).permute(0, 2, 3, 1)) / math.sqrt(dim)
    hidden = ~mask[:, None, None]  # [batch, 1, 1, queries, rows]
    scores = scores.view(batch, kv_heads, shared, queries, rows).masked_fill(hidden, -torch.inf)
    # A row that sees nothing softmaxes to NaN: the second fill makes it zeros.
    weights = scores.softmax(dim=-1).masked_fill(hidden, 0.0)
    # 0 * NaN is NaN: values that nobody sees must be zeroed, their weight of 0 is not enough.
    unseen = ~mask.any(dim=1)[:, :, None, None]  # [batch, rows, 1, 1]
    values = v.to(wide).masked_fill(unseen, 0.0).permute(0, 2, 1, 3)
    mixed = torch.matmul(weights.view(batch, kv_heads, shared * queries, rows), values)
    mixed = mixed.view(batch, kv_heads, shared, queries, dim).permute(0, 3, 1, 2, 4)
    return mixed.reshape(batch, queries, q_heads, dim).to(q.dtype)
