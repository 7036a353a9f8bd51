"""Attention over paged keys and values: gather the pages, mask, one softmax.

Consecutive requests with the same number of query rows are one batched computation, so a decode or
verify batch is a single one. Long prompts are cut into slices of query rows, to bound the scores.

On a CPU each query row is computed alone over exactly the keys that it sees, in their order.
Its calls have the shape of that number of keys, whether the keys are in the pool or in a tail and
whatever the other rows of the batch see, so its bits do not depend on the batch (see `rows`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

from specdecode_kernels.metadata import (
    DEFAULT_ATTENTION,
    AttentionMetadata,
    AttentionParams,
    LayerKV,
    TreeKV,
)
from specdecode_kernels.torch.by_row import by_row, computes_by_row, update_by_row
from specdecode_kernels.torch.elementwise import accumulation_dtype
from specdecode_kernels.torch.kv_cache import dequantised

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
    """What the requests of a run see, gathered: pool rows first, then tree KV."""

    q: Tensor  # [batch, queries, q_heads, k_dim]
    k: Tensor  # [batch, rows, kv_heads, k_dim]
    v: Tensor  # [batch, rows, kv_heads, v_dim]
    mask: Tensor  # [batch, queries, rows] bool
    params: AttentionParams


def attend(
    q: Tensor,
    kv: LayerKV,
    metadata: AttentionMetadata,
    tree_kv: TreeKV | None,
    params: AttentionParams = DEFAULT_ATTENTION,
) -> Tensor:
    """Compute run by run."""
    if metadata.qo_lens_on_device:
        metadata, tree_kv = _by_row(metadata, tree_kv)
    output = q.new_empty(*q.shape[:2], kv.v.shape[2])
    for run in equal_runs(metadata.qo_lens):
        seen = _gather(run, q, kv, metadata, tree_kv, params)
        mixed = _attention_by_row(seen) if computes_by_row(q) else _sliced_attention(seen)
        output[run.rows] = mixed.flatten(0, 1)
    return output


def attend_with_lse(
    q: Tensor,
    kv: LayerKV,
    metadata: AttentionMetadata,
    tree_kv: TreeKV | None,
    params: AttentionParams = DEFAULT_ATTENTION,
) -> tuple[Tensor, Tensor]:
    """Attend, and compute the scores again for the log-sum-exp."""
    if metadata.qo_lens_on_device:
        metadata, tree_kv = _by_row(metadata, tree_kv)
    lse = torch.empty(q.shape[:2], dtype=accumulation_dtype(q.dtype), device=q.device)
    for run in equal_runs(metadata.qo_lens):
        seen = _gather(run, q, kv, metadata, tree_kv, params)
        computed = _lse_by_row(seen) if computes_by_row(q) else _sliced_lse(seen)
        lse[run.rows] = computed.flatten(0, 1).to(lse.dtype)
    return attend(q, kv, metadata, tree_kv, params), lse


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Weigh outs [rows, heads, dim] by the share of lses [rows, heads]; -inf has none."""
    lse = by_row(torch.logaddexp, lse_a, lse_b)
    out = torch.zeros_like(out_a, dtype=lse.dtype)
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        share = update_by_row(torch.exp_, part_lse - lse)
        share = share.masked_fill(part_lse == -torch.inf, 0.0)[..., None]
        out += (part * share).masked_fill(share == 0.0, 0.0)  # 0 * NaN is NaN
    return out.to(out_a.dtype), lse


def mixing_dtype(dtype: torch.dtype) -> torch.dtype:
    """A type wider than `dtype`, except for float64 itself: for attention.

    Kernels are compared with a reference whose own rounding is too small to matter.
    """
    return torch.float64 if dtype in (torch.float32, torch.float64) else torch.float32


def equal_runs(qo_lens: tuple[int, ...]) -> Iterator[Run]:
    """Cut a batch into runs of consecutive requests with equally many query rows."""
    request = row = 0
    for queries, members in groupby(qo_lens):
        batch = sum(1 for _ in members)
        next_request, next_row = request + batch, row + batch * queries
        if queries:
            yield Run(slice(request, next_request), slice(row, next_row), batch, queries)
        request, row = next_request, next_row


def _by_row(
    metadata: AttentionMetadata, tree_kv: TreeKV | None
) -> tuple[AttentionMetadata, TreeKV | None]:
    """Make every row a request, since only the device knows which rows belong together."""
    starts = metadata.cu_seqlens_q
    assert starts is not None
    rows = torch.arange(len(metadata.kv_lens), device=metadata.kv_lens.device)
    request = torch.searchsorted(starts[1:], rows, right=True)
    if tree_kv is not None:
        k, v, mask = tree_kv
        tree_kv = TreeKV(k[request], v[request], mask[request, rows - starts[request]][:, None])
    by_row = replace(
        metadata,
        page_table=metadata.page_table[request],
        qo_lens=(1,) * len(rows),
        cu_seqlens_q=None,
        qo_lens_on_device=False,
    )
    return by_row, tree_kv


def _gather(
    run: Run,
    q: Tensor,
    kv: LayerKV,
    metadata: AttentionMetadata,
    tree_kv: TreeKV | None,
    params: AttentionParams,
) -> _Seen:
    k = dequantised(_gather_rows(kv.k, metadata, run.requests), kv.scale.k, mixing_dtype(q.dtype))
    v = dequantised(_gather_rows(kv.v, metadata, run.requests), kv.scale.v, mixing_dtype(q.dtype))
    kv_lens = metadata.kv_lens[run.rows].view(run.batch, run.queries, 1)
    mask = torch.arange(k.shape[1], device=k.device) < kv_lens
    if tree_kv is not None:
        tree_k, tree_v, tree_mask = (part[run.requests] for part in tree_kv)
        k = torch.cat((k, tree_k.to(k.dtype)), dim=1)
        v = torch.cat((v, tree_v.to(v.dtype)), dim=1)
        mask = torch.cat((mask, tree_mask[:, : run.queries]), dim=2)
    if params.reach is not None:
        count = mask.cumsum(2)
        mask &= count > _unattended(count[:, :, -1:], params)
    queries = q[run.rows].reshape(run.batch, run.queries, *q.shape[1:])
    return _Seen(queries, k, v, mask, params)


def _unattended(seen: Tensor, params: AttentionParams) -> Tensor:
    """Return how many of the first keys that rows see lie before their windows or chunks."""
    if params.sliding_window is not None:
        return seen - params.sliding_window
    assert params.attention_chunk_size is not None
    size = params.attention_chunk_size
    return (seen - 1).clamp(min=0) // size * size


def _gather_rows(pool: Tensor, metadata: AttentionMetadata, requests: slice) -> Tensor:
    # [batch, max_kv_len, kv_heads, dim]
    pages = -(-metadata.max_kv_len // metadata.page_size)
    paged = pool.view(-1, metadata.page_size, *pool.shape[1:])
    gathered = paged[metadata.page_table[requests, :pages]]  # [batch, pages, page_size, ...]
    return gathered.flatten(1, 2)[:, : metadata.max_kv_len]


def _attention_by_row(seen: _Seen) -> Tensor:
    rows = [
        _masked_attention(q, keys, values, shown, seen.params)
        for q, keys, values, shown in _visible_by_row(seen)
    ]
    return torch.cat(rows).view(*seen.q.shape[:3], seen.v.shape[3]).to(seen.q.dtype)


def _lse_by_row(seen: _Seen) -> Tensor:
    rows = [
        _masked_scores(q, keys, shown, seen.params).logsumexp(dim=-1).flatten()
        for q, keys, _, shown in _visible_by_row(seen)
    ]
    return torch.cat(rows).view(seen.q.shape[:3])


def _visible_by_row(seen: _Seen) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Each query row's q [1, 1, q_heads, dim], keys and values [1, kv_heads, seen rows, dim], mask.

    All of them are fresh copies, so that strides and alignment depend on the number of keys alone.
    """
    wide = mixing_dtype(seen.q.dtype)
    for q, k, v, mask in zip(seen.q, seen.k, seen.v, seen.mask, strict=True):
        keys, values = _by_head(k[None], wide), _by_head(v[None], wide)
        for row, shown in zip(q, mask, strict=True):
            visible = shown.nonzero()[:, 0]
            yield (
                row[None, None].to(wide, copy=True),
                keys.index_select(2, visible),
                values.index_select(2, visible),
                shown[visible][None, None],
            )


def _sliced_attention(seen: _Seen) -> Tensor:
    wide = mixing_dtype(seen.q.dtype)
    keys, values = _by_head(seen.k, wide), _by_head(seen.v, wide)
    # 0 * NaN is NaN: values that nobody sees must be zeroed, their weight of 0 is not enough.
    unseen = ~seen.mask.any(dim=1)[:, None, :, None]  # [batch, 1, rows, 1]
    values = values.masked_fill(unseen, 0.0)
    slices = [
        _masked_attention(part.to(wide), keys, values, shown, seen.params)
        for part, shown in _slices(seen.q, seen.mask)
    ]
    return torch.cat(slices, dim=1).to(seen.q.dtype)


def _sliced_lse(seen: _Seen) -> Tensor:
    wide = mixing_dtype(seen.q.dtype)
    keys = _by_head(seen.k, wide)
    slices = [
        _masked_scores(part.to(wide), keys, shown, seen.params).logsumexp(dim=-1)
        for part, shown in _slices(seen.q, seen.mask)
    ]
    by_query = [part.permute(0, 3, 1, 2).flatten(2) for part in slices]
    return torch.cat(by_query, dim=1)  # [batch, queries, q_heads]


def _slices(q: Tensor, mask: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    step = max(1, MAX_SCORES // max(1, q.shape[0] * q.shape[2] * mask.shape[2]))
    return zip(torch.split(q, step, dim=1), torch.split(mask, step, dim=1), strict=True)


def _by_head(x: Tensor, dtype: torch.dtype) -> Tensor:
    # [batch, rows, kv_heads, dim] -> [batch, kv_heads, rows, dim], widened and moved in one copy
    by_head = x.permute(0, 2, 1, 3)
    return by_head.to(dtype, memory_format=torch.contiguous_format).contiguous()


def _masked_scores(q: Tensor, keys: Tensor, mask: Tensor, params: AttentionParams) -> Tensor:
    """Return scores [batch, kv_heads, query heads that share one, queries, rows].

    With sinks there is one more row, the last.
    """
    batch, queries, q_heads, dim = q.shape
    kv_heads, rows = keys.shape[1:3]
    shared = q_heads // kv_heads
    folded = q.reshape(batch, queries, kv_heads, shared, dim).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(batch, kv_heads, shared * queries, dim)
    scores = torch.matmul(folded * params.scale_of(dim), keys.transpose(2, 3))
    scores = scores.view(batch, kv_heads, shared, queries, rows)
    if params.logit_softcap is not None:
        scores = (scores / params.logit_softcap).tanh_() * params.logit_softcap
    scores.masked_fill_(~mask[:, None, None], -torch.inf)
    if params.sinks is None:
        return scores
    sinks = params.sinks.to(scores.dtype).view(1, kv_heads, shared, 1, 1)
    return torch.cat((scores, sinks.expand(batch, -1, -1, queries, -1)), dim=4)


def _masked_attention(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor, params: AttentionParams
) -> Tensor:
    batch, queries, q_heads, _ = q.shape
    scores = _masked_scores(q, keys, mask, params)
    weights = scores.softmax(dim=-1)[..., : keys.shape[2]].flatten(2, 3)
    mixed = torch.matmul(weights, values).view(*scores.shape[:-1], values.shape[3])
    mixed = mixed.permute(0, 3, 1, 2, 4).reshape(batch, queries, q_heads, values.shape[3])
    # The softmax of a row that sees nothing is NaN.
    return mixed.masked_fill_(~mask.any(dim=2)[:, :, None, None], 0.0)
