"""Attention over paged keys and values and over tree KV, for any number of query rows per request.

Flash attention (Dao et al. 2022) with an online softmax; few programs are split over the rows of
keys and values (flash-decoding, Dao et al. 2023), and `merge_splits` puts the parts together. One
kernel serves decode, verify, tree and extend: a program holds a tile of the (query row, query head)
pairs that share a kv head, walks the pages up to the furthest row that one of them sees, then, in
the last split, tree KV. Both go through the same softmax, which merges them as log-sum-exp would.
With a window or chunks it walks from the block of the first row that a pair of the tile still sees.

Values of latents are the first entries of their keys (multi-head latent attention): they are loaded
once, and scores are the sum of their products and of those of the rest of a key.

The kernel gets each tensor as a tuple of its pointer and its strides. Letters: P pairs of a tile, R
rows of keys at a time, D dim filled up to a power of two. What a layer does not use is None.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import (
    FLOAT8,
    AttentionMetadata,
    AttentionParams,
    LayerKV,
    TreeKV,
)
from specdecode_kernels.triton.attend_arguments import (
    feature_arguments,
    starts_or_none,
    tree_arguments,
)
from specdecode_kernels.triton.float8 import decode_float8
from specdecode_kernels.triton.tiles import Tile, dot_type, power_of_two

LOG2_E = tl.constexpr(1.4426950408889634)
PRECISION = tl.constexpr("tf32x3")
"""float32 is multiplied by tensor cores in three products of TF32, with a relative error of about
2**-21. Without them a thread would hold whole rows of keys, and spill from heads of 128 on."""
MASK_BITS = tl.constexpr(32)  # rows of tree KV that one word of the mask covers
LN_2 = tl.constexpr(0.6931471805599453)
OUTSIDE = tl.constexpr(1 << 30)  # more keys than a request has
BATCH_SIZES = [
    *("rows", "queries", "tiles", "shared"),
    *("stride_table", "tree_rows", "stride_mask", "stride_mask_query"),
]
"""Arguments that change with the batch: one kernel serves all of their values."""


@triton.jit(do_not_specialize=BATCH_SIZES)
def _attend_kernel(
    q, k, v,  # [rows, q_heads, dim], [pool rows, kv_heads, dim], [pool rows, kv_heads, v_dim]
    page_table, stride_table,  # [requests, pages]
    tree_kv, tree_rows, stride_mask, stride_mask_query,  # or None, 0, 0, 0; as in `TreeKV`
    out, lse,  # [splits, rows, q_heads, v_dim], [splits, rows, q_heads], contiguous
    rows, starts_ptr, kv_lens_ptr, queries, tiles, shared,
    score_scale, softcap, window, chunk,  # the last three may be None; score_scale fits softcap
    sinks, k_scale, v_scale,  # sinks [q_heads] f32, contiguous, or None
    DIM: tl.constexpr, V_DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, IS_PARTIAL: tl.constexpr,
    DOT: tl.constexpr, PAIRS: tl.constexpr, ROWS: tl.constexpr, BLOCK_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr, REST: tl.constexpr, BLOCK_REST: tl.constexpr,  # of latents' keys, or 0
):  # fmt: skip
    request = (tl.program_id(0) // tiles).to(tl.int64)
    first_pair = (tl.program_id(0) % tiles) * PAIRS
    kv_head = tl.program_id(1).to(tl.int64)
    first_row = request * queries
    if starts_ptr is not None:
        first_row = tl.load(starts_ptr + request)
        queries = (tl.load(starts_ptr + request + 1) - first_row).to(tl.int32)
        if first_pair >= queries * shared:
            return
    query, is_pair, row, head = _pairs(first_pair, first_row, queries, kv_head, shared, PAIRS)
    q_tile = _load_pairs(q, row, head, is_pair, 0, DIM, BLOCK_DIM, DOT)
    q_rest = _load_pairs(q, row, head, is_pair, DIM, REST, BLOCK_REST, DOT) if REST else None
    kv_lens = tl.load(kv_lens_ptr + row, mask=is_pair, other=0).to(tl.int32)
    if tree_kv is not None:
        tree_k, tree_v, mask = tree_kv
        mask = (mask[0] + request * stride_mask, query * stride_mask_query, mask[1], is_pair)
    skipped = None  # or how many of the keys that a pair sees come before its window or chunk [P]
    if window is not None or chunk is not None:
        seen = kv_lens
        if tree_kv is not None:
            seen += _count_tree(mask, tree_rows, MASK_BITS)
        if window is not None:
            before = tl.maximum(seen - window, 0)
        else:
            before = tl.maximum(seen - 1, 0) // chunk * chunk
        skipped = tl.where(is_pair, before, OUTSIDE)
    pages = (page_table[0] + request * stride_table, page_table[1])
    scale = score_scale * k_scale
    row_max, row_sum, acc = _attend_pages(
        q_tile, q_rest, k, v, pages, kv_head, kv_lens, skipped, scale, softcap,
        DIM, V_DIM, BLOCK_V, REST, PAGE_SIZE, ROWS,
    )  # fmt: skip
    state = (row_max, row_sum, acc * v_scale)
    if tree_kv is not None:
        tree = (_of_request(tree_k, request), _of_request(tree_v, request), mask)
        if skipped is not None:
            skipped = tl.maximum(skipped - kv_lens, 0)
        state = _attend_tree(
            q_tile, q_rest, tree, kv_head, tree_rows, skipped, score_scale, softcap, state,
            DIM, V_DIM, BLOCK_V, REST, min(ROWS, MASK_BITS),
        )  # fmt: skip
    if sinks is not None:
        state = _add_sink(sinks, head, state)
    # Rows and heads of one split; there are as many programs as kv heads.
    place = (tl.program_id(2).to(tl.int64) * rows + row) * (tl.num_programs(1) * shared) + head
    _store(out, lse, state, place, is_pair, V_DIM, BLOCK_V, IS_PARTIAL)


@triton.jit
def _pairs(first_pair, first_row, queries, kv_head, shared, PAIRS: tl.constexpr):
    # Of each pair of the tile: query row within the request, whether there is one, row and head.
    pairs = first_pair + tl.arange(0, PAIRS)
    query = pairs // shared
    return query, query < queries, first_row + query, kv_head * shared + pairs % shared


@triton.jit
def _attend_pages(
    q, q_rest, k, v,
    pages,  # pointer to the request's page ids, stride
    kv_head, kv_lens, skipped, scale, softcap,
    DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_V: tl.constexpr, REST: tl.constexpr,
    PAGE_SIZE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    end = tl.max(kv_lens, axis=0)
    first, base = 0, 0  # that a pair sees, and the block that it is in
    if skipped is not None:
        first = tl.minimum(tl.min(skipped, axis=0), end)
        base = first // ROWS * ROWS
    steps = tl.cdiv(tl.cdiv(end - base, ROWS), tl.num_programs(2))  # of each split
    begin = base + tl.program_id(2) * steps * ROWS
    stop = tl.minimum(begin + steps * ROWS, end)
    row_max = tl.full([q.shape[0]], float("-inf"), tl.float32)
    acc = tl.zeros([q.shape[0], BLOCK_V], tl.float32)
    state = (row_max, tl.zeros([q.shape[0]], tl.float32), acc)
    pool_rows = _pool_rows(pages, begin, stop, PAGE_SIZE, ROWS)
    for start in range(begin, stop, ROWS):
        # The page ids of the next step come from the step before it. A look-up within the step
        # would be a level of indirection, for which the compiler halves the buffers in flight.
        next_rows = _pool_rows(pages, start + ROWS, stop, PAGE_SIZE, ROWS)
        places = start + tl.arange(0, ROWS)
        is_row = places < stop
        if skipped is not None:
            is_row &= places >= first
        k_rows = _load_rows(k, pool_rows, kv_head, is_row, 0, DIM, q.shape[1], q.dtype)
        k_rest = None
        if REST:
            v_rows = k_rows
            k_rest = _load_rows(k, pool_rows, kv_head, is_row, DIM, REST, q_rest.shape[1], q.dtype)
        else:
            v_rows = _load_rows(v, pool_rows, kv_head, is_row, 0, V_DIM, BLOCK_V, q.dtype)
        shown = is_row[None, :] & (places[None, :] < kv_lens[:, None])
        if skipped is not None:
            shown &= places[None, :] >= skipped[:, None]
        state = _update_softmax(q, q_rest, k_rows, k_rest, v_rows, shown, scale, softcap, state)
        pool_rows = next_rows
    return state


@triton.jit
def _pool_rows(pages, start, stop, PAGE_SIZE: tl.constexpr, ROWS: tl.constexpr):
    # The pool rows [R] i32 of a request's rows from `start` on; a pool has fewer than 2**31 rows.
    places = start + tl.arange(0, ROWS)
    pointers = pages[0] + (places // PAGE_SIZE) * pages[1]
    page = tl.load(pointers, mask=places < stop, other=0)
    return page.to(tl.int32) * PAGE_SIZE + places % PAGE_SIZE


@triton.jit
def _of_request(kv, request):
    # Tree keys or values of one request: pointer and strides, without the one of requests.
    pointer, stride_request, stride_row, stride_head, stride_dim = kv
    return pointer + request * stride_request, stride_row, stride_head, stride_dim


@triton.jit
def _attend_tree(
    q, q_rest,
    tree,  # k, v; mask: pointer, offset of each pair [P], stride of a row, is_pair [P]
    kv_head, tree_rows,
    skipped,  # of the rows that the mask shows a pair [P], or None
    scale, softcap, state,
    DIM: tl.constexpr, V_DIM: tl.constexpr, BLOCK_V: tl.constexpr, REST: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    k, v, mask = tree
    # The last split has the fewest rows of the prefix. Others walk an empty range.
    walked = tl.where(tl.program_id(2) == tl.num_programs(2) - 1, tree_rows, 0)
    # Most trees are one step: buffers in flight would only cost shared memory.
    for start in tl.range(0, walked, ROWS, num_stages=1):
        places = tl.arange(0, ROWS)
        marks = _mask_rows(mask, start, tree_rows, ROWS)
        if skipped is not None:
            count = tl.sum(marks, axis=1)
            marks = tl.where(tl.cumsum(marks, axis=1) > skipped[:, None], marks, 0)
            skipped = tl.maximum(skipped - count, 0)
        bits = tl.sum(marks << places[None, :], axis=1)  # one of each row
        shown = ((bits[:, None] >> places[None, :]) & 1) > 0
        # 0 * NaN is NaN: rows that no pair sees must be zeros, their weight of 0 is not enough.
        seen = tl.reduce(bits, 0, _or)
        is_seen = ((seen >> places) & 1) > 0
        rows = start + places
        k_rows = _load_rows(k, rows, kv_head, is_seen, 0, DIM, q.shape[1], q.dtype)
        k_rest = None
        if REST:
            v_rows = k_rows
            k_rest = _load_rows(k, rows, kv_head, is_seen, DIM, REST, q_rest.shape[1], q.dtype)
        else:
            v_rows = _load_rows(v, rows, kv_head, is_seen, 0, V_DIM, BLOCK_V, q.dtype)
        state = _update_softmax(q, q_rest, k_rows, k_rest, v_rows, shown, scale, softcap, state)
    return state


@triton.jit
def _count_tree(mask, tree_rows, ROWS: tl.constexpr):
    # How many rows of tree KV the mask shows each pair: [P] i32.
    count = tl.zeros(mask[3].shape, tl.int32)
    for start in tl.range(0, tree_rows, ROWS, num_stages=1):
        count += tl.sum(_mask_rows(mask, start, tree_rows, ROWS), axis=1)
    return count


@triton.jit
def _mask_rows(mask, start, tree_rows, ROWS: tl.constexpr):
    # Which of the rows from `start` on each pair sees: [P, R] i32, 0 or 1.
    pointer, offsets, stride_row, is_pair = mask
    rows = start + tl.arange(0, ROWS)
    is_row = is_pair[:, None] & (rows < tree_rows)[None, :]
    at = offsets[:, None] + rows[None, :] * stride_row
    return tl.load(pointer + at, mask=is_row, other=0).to(tl.int32)


@triton.jit
def _or(a, b):
    return a | b


@triton.jit
def _update_softmax(q, q_rest, k, k_rest, v, shown, scale, softcap, state):
    # One step of the online softmax, in base 2. q [P, D]; k, v [R, D]; shown [P, R]; state:
    # row_max, row_sum [P] f32; acc [P, D] f32. The rest of a key [R, D], or None, comes after k.
    row_max, row_sum, acc = state
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if q_rest is not None:
        scores = tl.dot(q_rest, tl.trans(k_rest), scores, input_precision=PRECISION)
    scores *= scale
    if softcap is not None:  # tanh(x) = 1 - 2 / (e^(2x) + 1), where `scores` is 2x in base 2
        scores = tl.where(scores > 64.0, 64.0, scores)  # is 1; a minimum would drop NaN
        scores = softcap * (1.0 - 2.0 / (tl.exp2(scores) + 1.0))
    scores = tl.where(shown, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, axis=1))
    base = tl.where(new_max == float("-inf"), 0.0, new_max)  # nothing seen so far
    weights = tl.exp2(scores - base[:, None])
    decay = tl.exp2(row_max - base)
    row_sum = row_sum * decay + tl.sum(weights, axis=1)
    acc = acc * decay[:, None]
    acc += tl.dot(weights.to(q.dtype), v, input_precision=PRECISION)
    return new_max, row_sum, acc


@triton.jit
def _add_sink(sinks, head, state):
    # Adds the sink of each pair's head to the denominator, in the last split alone.
    row_max, row_sum, acc = state
    is_last = tl.program_id(2) == tl.num_programs(2) - 1
    sink = tl.where(is_last, tl.load(sinks + head) * LOG2_E, float("-inf"))
    new_max = tl.maximum(row_max, sink)
    base = tl.where(new_max == float("-inf"), 0.0, new_max)
    decay = tl.exp2(row_max - base)
    return new_max, row_sum * decay + tl.exp2(sink - base), acc * decay[:, None]


@triton.jit
def _load_rows(
    kv, rows, head, is_read,
    FIRST: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    # Keys or values [R, D] of rows [R] of one head, DIM entries from FIRST on; zeros where not
    # is_read [R].
    dims = tl.arange(0, BLOCK_DIM)
    is_element = is_read[:, None] & (dims < DIM)[None, :]
    dims += FIRST
    rows = rows[:, None].to(tl.int64)
    if kv[0].dtype.element_ty == tl.uint8:
        return decode_float8(_load(kv, rows, head, dims[None, :], is_element, 0)).to(DTYPE)
    return _load(kv, rows, head, dims[None, :], is_element, 0.0).to(DTYPE)


@triton.jit
def _load_pairs(
    q, row, head, is_pair,
    FIRST: tl.constexpr, DIM: tl.constexpr, BLOCK_DIM: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    # Queries [P, D] of rows and heads [P], DIM entries from FIRST on; zeros where not is_pair [P].
    dims = tl.arange(0, BLOCK_DIM)
    is_read = is_pair[:, None] & (dims < DIM)[None, :]
    return _load(q, row[:, None], head[:, None], FIRST + dims[None, :], is_read, 0.0).to(DTYPE)


@triton.jit
def _load(tensor, row, head, dim, is_read, other):
    pointer, stride_row, stride_head, stride_dim = tensor
    at = row * stride_row + head * stride_head + dim * stride_dim
    return tl.load(pointer + at, mask=is_read, other=other)


@triton.jit
def _store(
    out,
    lse,
    state,
    place,
    is_pair,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    IS_PARTIAL: tl.constexpr,
):
    # place [P] i64: where split, row and head are in out, without its last dimension, and in lse.
    row_max, row_sum, acc = state
    dims = tl.arange(0, BLOCK_DIM)
    is_output = is_pair[:, None] & (dims < DIM)[None, :]
    divisor = tl.where(row_sum == 0.0, 1.0, row_sum)
    if IS_PARTIAL:
        is_output &= (row_sum != 0.0)[:, None]  # NaN is written
    result = (acc / divisor[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * DIM + dims[None, :], result, mask=is_output)
    if lse is not None:
        tl.store(lse + place, (row_max + tl.log2(divisor)) * LN_2, mask=is_pair)


def attend(
    q: Tensor,
    kv: LayerKV,
    metadata: AttentionMetadata,
    tree_kv: TreeKV | None,
    params: AttentionParams,
    tile: Tile,
    out: Tensor,  # [splits, rows, q_heads, v_dim], of the queries' type or float32, contiguous
    lse: Tensor | None,  # [splits, rows, q_heads] f32, contiguous; needed for more than one split
    converts_float8: bool,  # by the device's own instructions instead of by integers
) -> None:
    """Attend within each of `out.shape[0]` splits. Parts that see nothing have an lse of -inf."""
    splits, rows, q_heads, v_dim = out.shape
    rest = q.shape[2] - v_dim if kv.is_latent else 0
    dim = q.shape[2] - rest
    kv_heads = kv.k.shape[1]
    shared = q_heads // kv_heads
    most = max(metadata.qo_lens)
    tiles = triton.cdiv(most * shared, tile.pairs)
    k, v, page_table = kv.k, kv.v, metadata.page_table
    if k.dtype == FLOAT8 and not converts_float8:
        k, v = k.view(torch.uint8), v.view(torch.uint8)
    _attend_kernel[(len(metadata.qo_lens) * tiles, kv_heads, splits)](
        (q, *q.stride()),
        (k, *k.stride()),
        (v, *v.stride()),
        (page_table, page_table.stride(1)),
        page_table.stride(0),
        *tree_arguments(tree_kv),
        out,
        lse,
        rows,
        starts_or_none(metadata),
        metadata.kv_lens,
        most,
        tiles,
        shared,
        *feature_arguments(params, q.shape[2]),
        kv.scale.k,
        kv.scale.v,
        DIM=dim,
        V_DIM=v_dim,
        PAGE_SIZE=metadata.page_size,
        IS_PARTIAL=splits > 1,
        DOT=dot_type(q.dtype),
        PAIRS=tile.pairs,
        ROWS=tile.rows,
        BLOCK_DIM=power_of_two(dim),
        BLOCK_V=power_of_two(v_dim),
        REST=rest,
        BLOCK_REST=power_of_two(rest) if rest else 0,
        num_warps=tile.warps,
        num_stages=tile.stages,
        maxnreg=tile.most_registers,
    )
