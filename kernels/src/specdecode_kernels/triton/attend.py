"""Attention over paged keys and values and over tree KV, for any number of query rows per request.

Flash attention (Dao et al. 2022) with an online softmax; few programs are split over the rows of
keys and values (flash-decoding, Dao et al. 2023), and `merge_splits` puts the parts together. One
kernel serves decode, verify, tree and extend: a program holds a tile of the (query row, query head)
pairs that share a kv head, walks the pages up to the furthest row that one of them sees, then, in
the last split, tree KV. Both go through the same softmax, which merges them as log-sum-exp would.

Letters: P pairs of a tile, R rows of keys at a time, D dim filled up to a power of two.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import AttentionMetadata, LayerKV, TreeKV
from specdecode_kernels.triton.numeric import dot_type
from specdecode_kernels.triton.tiles import Tile

LOG2_E = math.log2(math.e)
LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _fold(q, k, v, shown, scale, peak, total, mixed, DOT: tl.constexpr):
    # One step of the online softmax, in base 2. q [P, D]; k [D, R]; v [R, D]; shown [P, R];
    # peak, total [P] f32; mixed [P, D] f32.
    scores = tl.dot(q, k.to(DOT), input_precision="ieee") * scale
    scores = tl.where(shown, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, axis=1))
    base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # nothing seen so far
    weights = tl.exp2(scores - base[:, None])
    fade = tl.exp2(peak - base)
    total = total * fade + tl.sum(weights, axis=1)
    mixed = mixed * fade[:, None]
    mixed += tl.dot(weights.to(DOT), v.to(DOT), input_precision="ieee")
    return new_peak, total, mixed


@triton.jit
def _attend_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    starts_ptr,
    kv_lens_ptr,
    tree_k_ptr,
    tree_v_ptr,
    tree_mask_ptr,
    out_ptr,
    lse_ptr,
    queries,
    tiles,
    tree_rows,
    score_scale,
    k_scale,
    v_scale,
    stride_q_row,
    stride_q_head,
    stride_q_dim,
    stride_k_row,
    stride_k_head,
    stride_k_dim,
    stride_v_row,
    stride_v_head,
    stride_v_dim,
    stride_table_request,
    stride_table_page,
    stride_tree_k_request,
    stride_tree_k_row,
    stride_tree_k_head,
    stride_tree_k_dim,
    stride_tree_v_request,
    stride_tree_v_row,
    stride_tree_v_head,
    stride_tree_v_dim,
    stride_mask_request,
    stride_mask_query,
    stride_mask_row,
    stride_out_split,
    stride_out_row,
    stride_out_head,
    stride_lse_split,
    stride_lse_row,
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
    split = tl.program_id(2)
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
    is_dim = dims < DIM
    is_output = is_pair[:, None] & is_dim[None, :]
    q_at = row[:, None] * stride_q_row + head[:, None] * stride_q_head + dims * stride_q_dim
    q = tl.load(q_ptr + q_at, mask=is_output, other=0.0).to(DOT)

    peak = tl.full([PAIRS], float("-inf"), tl.float32)
    total = tl.zeros([PAIRS], tl.float32)
    mixed = tl.zeros([PAIRS, BLOCK_DIM], tl.float32)

    kv_lens = tl.load(kv_lens_ptr + row, mask=is_pair, other=0).to(tl.int32)
    end = tl.max(kv_lens, axis=0)
    steps = tl.cdiv(tl.cdiv(end, ROWS), tl.num_programs(2))  # of each split
    begin = split * steps * ROWS
    stop = tl.minimum(begin + steps * ROWS, end)
    for start in range(begin, stop, ROWS):
        places = start + tl.arange(0, ROWS)
        is_row = places < stop
        page_at = request * stride_table_request + (places // PAGE_SIZE) * stride_table_page
        page = tl.load(table_ptr + page_at, mask=is_row, other=0)
        pool_row = page * PAGE_SIZE + places % PAGE_SIZE  # [R] i64
        k_at = pool_row[None, :] * stride_k_row + kv_head * stride_k_head
        v_at = pool_row[:, None] * stride_v_row + kv_head * stride_v_head
        k = tl.load(
            k_ptr + k_at + dims[:, None] * stride_k_dim,
            mask=is_dim[:, None] & is_row[None, :],
            other=0.0,
        )
        v = tl.load(
            v_ptr + v_at + dims[None, :] * stride_v_dim,
            mask=is_row[:, None] & is_dim[None, :],
            other=0.0,
        )
        shown = is_row[None, :] & (places[None, :] < kv_lens[:, None])
        scale = score_scale * k_scale
        peak, total, mixed = _fold(q, k, v, shown, scale, peak, total, mixed, DOT)
    mixed *= v_scale

    if tree_k_ptr is not None:
        # The last split has the fewest rows of the prefix. Others walk an empty range.
        walked = tl.where(split == tl.num_programs(2) - 1, tree_rows, 0)
        for start in range(0, walked, ROWS):
            places = start + tl.arange(0, ROWS)
            is_row = places < tree_rows
            mask_at = request * stride_mask_request + query[:, None] * stride_mask_query
            shown = tl.load(
                tree_mask_ptr + mask_at + places[None, :] * stride_mask_row,
                mask=is_pair[:, None] & is_row[None, :],
                other=0,
            ).to(tl.int32)
            # 0 * NaN is NaN: rows that no pair sees must be zeros, their weight of 0 is not enough.
            is_seen = tl.max(shown, axis=0) > 0
            k_at = request * stride_tree_k_request + kv_head * stride_tree_k_head
            v_at = request * stride_tree_v_request + kv_head * stride_tree_v_head
            k = tl.load(
                tree_k_ptr
                + k_at
                + places[None, :] * stride_tree_k_row
                + dims[:, None] * stride_tree_k_dim,
                mask=is_dim[:, None] & is_seen[None, :],
                other=0.0,
            )
            v = tl.load(
                tree_v_ptr
                + v_at
                + places[:, None] * stride_tree_v_row
                + dims[None, :] * stride_tree_v_dim,
                mask=is_seen[:, None] & is_dim[None, :],
                other=0.0,
            )
            peak, total, mixed = _fold(q, k, v, shown > 0, score_scale, peak, total, mixed, DOT)

    is_empty = total == 0.0
    mixed = mixed / tl.where(is_empty, 1.0, total)[:, None]
    out_at = split.to(tl.int64) * stride_out_split + row * stride_out_row + head * stride_out_head
    is_written = is_output
    if IS_PARTIAL:
        is_written = is_output & (total != 0.0)[:, None]
    tl.store(
        out_ptr + out_at[:, None] + dims[None, :],
        mixed.to(out_ptr.dtype.element_ty),
        mask=is_written,
    )
    if lse_ptr is not None:
        lse = (peak + tl.log2(tl.where(is_empty, 1.0, total))) * LN_2
        lse_at = split.to(tl.int64) * stride_lse_split + row * stride_lse_row + head
        tl.store(lse_ptr + lse_at, lse, mask=is_pair)


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
    tree_strides: tuple[int, ...] = (0,) * 11
    if tree_kv is not None:
        tree_strides = (*tree_kv.k.stride(), *tree_kv.v.stride(), *tree_kv.tree_mask.stride())
    _attend_kernel[(batch * tiles, kv_heads, splits)](
        q,
        kv.k,
        kv.v,
        metadata.page_table,
        None if metadata.uniform_qo_len is not None else starts_of(metadata),
        metadata.kv_lens,
        None if tree_kv is None else tree_kv.k,
        None if tree_kv is None else tree_kv.v,
        None if tree_kv is None else tree_kv.tree_mask.view(torch.uint8),
        out,
        lse,
        most,
        tiles,
        0 if tree_kv is None else tree_kv.k.shape[1],
        LOG2_E / math.sqrt(dim),
        kv.scale.k,
        kv.scale.v,
        *q.stride(),
        *kv.k.stride(),
        *kv.v.stride(),
        *metadata.page_table.stride(),
        *tree_strides,
        *out.stride()[:3],
        *((0, 0) if lse is None else lse.stride()[:2]),
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
