"""Attention over paged keys and values and over tree KV, for any number of query rows per request.

Flash attention (Dao et al. 2022) with an online softmax; few programs are split over the rows of
keys and values (flash-decoding, Dao et al. 2023), and `merge_splits` puts the parts together. One
kernel serves decode, verify, tree and extend: a program holds a tile of the (query row, query head)
pairs that share a kv head, walks the pages up to the furthest row that one of them sees, then, in
the last split, tree KV. Both go through the same softmax, which merges them as log-sum-exp would.

The kernel gets each tensor as a tuple of its pointer and its strides. Letters: P pairs of a tile, R
rows of keys at a time, D dim filled up to a power of two.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import AttentionMetadata, LayerKV, TreeKV
from specdecode_kernels.triton.tiles import Tile, dot_type

LOG2_E = math.log2(math.e)
LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _attend_kernel(
    q,  # [rows, q_heads, dim]
    k,  # [pool rows, kv_heads, dim]
    v,
    page_table,  # [requests, pages]
    tree_kv,  # k, v [requests, rows, kv_heads, dim], mask [requests, queries, rows]; count of rows
    out,  # [splits, rows, q_heads, dim]
    lse,  # [splits, rows, q_heads]
    starts_ptr,
    kv_lens_ptr,
    queries,
    tiles,
    score_scale,
    k_scale,
    v_scale,
    SHARED: tl.constexpr,
    DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    IS_PARTIAL: tl.constexpr,
    DOT: tl.constexpr,
    PAIRS: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    request = (tl.program_id(0) // tiles).to(tl.int64)
    first_pair = (tl.program_id(0) % tiles) * PAIRS
    kv_head = tl.program_id(1).to(tl.int64)
    first_row = request * queries
    if starts_ptr is not None:
        first_row = tl.load(starts_ptr + request)
        queries = (tl.load(starts_ptr + request + 1) - first_row).to(tl.int32)
        if first_pair >= queries * SHARED:
            return
    pairs = first_pair + tl.arange(0, PAIRS)
    query = pairs // SHARED
    is_pair = query < queries
    row = first_row + query  # [P] i64
    head = kv_head * SHARED + pairs % SHARED
    dims = tl.arange(0, BLOCK_DIM)
    is_output = is_pair[:, None] & (dims < DIM)[None, :]
    q_tile = _load(q, row[:, None], head[:, None], dims[None, :], is_output).to(DOT)
    kv_lens = tl.load(kv_lens_ptr + row, mask=is_pair, other=0).to(tl.int32)

    scale = score_scale * k_scale
    row_max, row_sum, acc = _attend_pages(
        q_tile, k, v, page_table, request, kv_head, kv_lens, scale, DIM, PAGE_SIZE, ROWS
    )
    state = (row_max, row_sum, acc * v_scale)
    if tree_kv is not None:
        state = _attend_tree(
            q_tile, tree_kv, request, kv_head, query, is_pair, score_scale, state, DIM, ROWS
        )
    _store(out, lse, state, row, head, dims, is_pair, is_output, IS_PARTIAL)


@triton.jit
def _attend_pages(
    q,
    k,
    v,
    page_table,
    request,
    kv_head,
    kv_lens,
    scale,
    DIM: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
):
    table_ptr, stride_request, stride_page = page_table
    table_ptr += request * stride_request
    end = tl.max(kv_lens, axis=0)
    steps = tl.cdiv(tl.cdiv(end, ROWS), tl.num_programs(2))  # of each split
    begin = tl.program_id(2) * steps * ROWS
    stop = tl.minimum(begin + steps * ROWS, end)
    row_max = tl.full([q.shape[0]], float("-inf"), tl.float32)
    state = (row_max, tl.zeros([q.shape[0]], tl.float32), tl.zeros(q.shape, tl.float32))
    for start in range(begin, stop, ROWS):
        places = start + tl.arange(0, ROWS)
        is_row = places < stop
        page = tl.load(table_ptr + (places // PAGE_SIZE) * stride_page, mask=is_row, other=0)
        rows = page * PAGE_SIZE + places % PAGE_SIZE  # [R] i64
        k_rows, v_rows = _load_kv(k, v, rows, kv_head, is_row, DIM, q.shape[1])
        shown = is_row[None, :] & (places[None, :] < kv_lens[:, None])
        state = _update_softmax(q, k_rows, v_rows, shown, scale, state)
    return state


@triton.jit
def _attend_tree(
    q,
    tree_kv,
    request,
    kv_head,
    query,
    is_pair,
    scale,
    state,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
):
    k, v, mask, tree_rows = tree_kv
    k_of_request = (k[0] + request * k[1], k[2], k[3], k[4])
    v_of_request = (v[0] + request * v[1], v[2], v[3], v[4])
    mask_ptr, stride_request, stride_query, stride_row = mask
    mask_ptrs = mask_ptr + request * stride_request + query[:, None] * stride_query
    # The last split has the fewest rows of the prefix. Others walk an empty range.
    walked = tl.where(tl.program_id(2) == tl.num_programs(2) - 1, tree_rows, 0)
    for start in range(0, walked, ROWS):
        rows = start + tl.arange(0, ROWS)
        is_row = is_pair[:, None] & (rows < tree_rows)[None, :]
        shown = tl.load(mask_ptrs + rows[None, :] * stride_row, mask=is_row, other=0).to(tl.int32)
        # 0 * NaN is NaN: rows that no pair sees must be zeros, their weight of 0 is not enough.
        is_seen = tl.max(shown, axis=0) > 0
        k_rows, v_rows = _load_kv(
            k_of_request, v_of_request, rows, kv_head, is_seen, DIM, q.shape[1]
        )
        state = _update_softmax(q, k_rows, v_rows, shown > 0, scale, state)
    return state


@triton.jit
def _update_softmax(q, k, v, shown, scale, state):
    # One step of the online softmax, in base 2. q [P, D]; k [D, R]; v [R, D]; shown [P, R]; state:
    # row_max, row_sum [P] f32; acc [P, D] f32.
    row_max, row_sum, acc = state
    scores = tl.dot(q, k.to(q.dtype), input_precision="ieee") * scale
    scores = tl.where(shown, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    base = tl.where(new_max == float("-inf"), 0.0, new_max)  # nothing seen so far
    weights = tl.exp2(scores - base[:, None])
    decay = tl.exp2(row_max - base)
    row_sum = row_sum * decay + tl.sum(weights, axis=1)
    acc = acc * decay[:, None]
    acc += tl.dot(weights.to(q.dtype), v.to(q.dtype), input_precision="ieee")
    return new_max, row_sum, acc


@triton.jit
def _load_kv(k, v, rows, head, is_read, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr):
    # k [D, R] and v [R, D] of rows [R] of one head; zeros where not is_read [R].
    dims = tl.arange(0, BLOCK_DIM)
    is_dim = dims < DIM
    k_rows = _load(k, rows[None, :], head, dims[:, None], is_dim[:, None] & is_read[None, :])
    v_rows = _load(v, rows[:, None], head, dims[None, :], is_read[:, None] & is_dim[None, :])
    return k_rows, v_rows


@triton.jit
def _load(tensor, row, head, dim, is_read):
    pointer, stride_row, stride_head, stride_dim = tensor
    at = row * stride_row + head * stride_head + dim * stride_dim
    return tl.load(pointer + at, mask=is_read, other=0.0)


@triton.jit
def _store(out, lse, state, row, head, dims, is_pair, is_output, IS_PARTIAL: tl.constexpr):
    row_max, row_sum, acc = state
    divisor = tl.where(row_sum == 0.0, 1.0, row_sum)
    if IS_PARTIAL:
        is_output &= (row_sum != 0.0)[:, None]  # NaN is written
    split = tl.program_id(2).to(tl.int64)
    out_ptr, stride_split, stride_row, stride_head = out
    at = split * stride_split + row * stride_row + head * stride_head
    result = (acc / divisor[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + at[:, None] + dims[None, :], result, mask=is_output)
    if lse is not None:
        lse_ptr, stride_split, stride_row = lse
        at = split * stride_split + row * stride_row + head
        tl.store(lse_ptr + at, (row_max + tl.log2(divisor)) * LN_2, mask=is_pair)


def attend(
    q: Tensor,
    kv: LayerKV,
    metadata: AttentionMetadata,
    tree_kv: TreeKV | None,
    tile: Tile,
    out: Tensor,  # [splits, rows, q_heads, dim], of the queries' type or float32
    lse: Tensor | None,  # [splits, rows, q_heads] f32; needed where there is more than one split
) -> None:
    """Attend within each of `out.shape[0]` splits. Parts that see nothing have an lse of -inf."""
    splits, _, q_heads, dim = out.shape
    kv_heads = kv.k.shape[1]
    shared = q_heads // kv_heads
    most = max(metadata.qo_lens)
    tiles = triton.cdiv(most * shared, tile.pairs)
    batch = len(metadata.qo_lens)
    _attend_kernel[(batch * tiles, kv_heads, splits)](
        (q, *q.stride()),
        (kv.k, *kv.k.stride()),
        (kv.v, *kv.v.stride()),
        (metadata.page_table, *metadata.page_table.stride()),
        None if tree_kv is None else _tree_arguments(tree_kv),
        (out, *out.stride()[:3]),
        None if lse is None else (lse, *lse.stride()[:2]),
        None if metadata.uniform_qo_len is not None else starts_of(metadata),
        metadata.kv_lens,
        most,
        tiles,
        LOG2_E / math.sqrt(dim),
        kv.scale.k,
        kv.scale.v,
        SHARED=shared,
        DIM=dim,
        PAGE_SIZE=metadata.page_size,
        IS_PARTIAL=splits > 1,
        DOT=dot_type(q.dtype),
        PAIRS=tile.pairs,
        ROWS=tile.rows,
        BLOCK_DIM=tile.dim,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )


def _tree_arguments(tree_kv: TreeKV) -> tuple[Any, ...]:
    k, v, mask = tree_kv
    mask = mask.view(torch.uint8)
    return (k, *k.stride()), (v, *v.stride()), (mask, *mask.stride()), k.shape[1]


def starts_of(metadata: AttentionMetadata) -> Tensor:
    """Answer where the rows of every request begin; a copy to the device if nobody made it.

    Raises:
        RuntimeError: nobody made it and a CUDA graph is being captured, which cannot hold the copy.
    """
    if metadata.cu_seqlens_q is not None:
        return metadata.cu_seqlens_q
    if metadata.page_table.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            "attend: requests differ in query rows within a CUDA graph; give the metadata "
            "cu_seqlens_q, made before the capture"
        )
    lens = torch.tensor((0, *metadata.qo_lens), device=metadata.page_table.device)
    return lens.cumsum(0)
