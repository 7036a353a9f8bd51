"""The accepted path's keys and values moved to the front, every layer in one launch.

A row may be one step's place and another's source. One program holds all of a path's rows in a
range of columns, and no other program touches these: it reads them all, waits for its own threads,
and writes.
"""

import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.torch.kv_cache import as_bits

MIN_STEPS = 8
"""One kernel for all short paths."""
TILE = 1024
"""Elements that a program holds at once; four times as many no longer fit its registers."""


@triton.jit
def _pool_rows(pages_ptr, positions, page_size, inside):
    pages = tl.load(pages_ptr + positions // page_size, mask=inside, other=0)
    return pages * page_size + positions % page_size


@triton.jit
def _move(pool_ptr, strides, layer, sources, places, columns, width, is_moved):
    stride_layer, stride_row = strides
    pool_ptr += layer * stride_layer
    moved = is_moved[:, None] & (columns < width)[None, :]
    rows = tl.load(pool_ptr + sources[:, None] * stride_row + columns[None, :], mask=moved)
    tl.debug_barrier()
    tl.store(pool_ptr + places[:, None] * stride_row + columns[None, :], rows, mask=moved)


@triton.jit(do_not_specialize=("stride_path", "path_length"))
def compact_kv_kernel(
    k_ptr,
    v_ptr,
    pages_ptr,
    req_indices_ptr,
    lengths_ptr,
    path_ptr,
    k_strides,  # of a layer and of a row
    v_strides,
    stride_pages,
    stride_path,
    path_length,
    page_size,
    k_width,
    v_width,
    STEPS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64)
    columns = tl.program_id(2).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    steps = tl.arange(0, STEPS)
    inside = steps < path_length
    nodes = tl.load(path_ptr + request * stride_path + steps, mask=inside, other=0)
    length = tl.load(lengths_ptr + request)
    pages_ptr += tl.load(req_indices_ptr + request) * stride_pages
    sources = _pool_rows(pages_ptr, length + nodes, page_size, inside)
    places = _pool_rows(pages_ptr, length + steps, page_size, inside)
    is_moved = inside & (nodes != steps)
    _move(k_ptr, k_strides, layer, sources, places, columns, k_width, is_moved)
    _move(v_ptr, v_strides, layer, sources, places, columns, v_width, is_moved)


def compact_kv(
    k: Tensor,
    v: Tensor,
    page_table: Tensor,
    req_indices: Tensor,
    lengths: Tensor,
    path: Tensor,
    page_size: int,
) -> None:
    k, v = as_bits(k), as_bits(v)
    layers, k_width, v_width = k.shape[0], *(x.shape[2] * x.shape[3] for x in (k, v))
    batch, length = path.shape
    path = path if path.stride(1) == 1 else path.contiguous()
    width = max(k_width, v_width)
    if not batch * k.numel():
        return
    steps = max(MIN_STEPS, triton.next_power_of_2(length))
    columns = min(triton.next_power_of_2(width), max(TILE // steps, 16))
    compact_kv_kernel[(batch, layers, triton.cdiv(width, columns))](
        k,
        v,
        page_table,
        req_indices.contiguous(),
        lengths.contiguous(),
        path,
        k.stride()[:2],
        v.stride()[:2],
        page_table.stride(0),
        path.stride(0),
        length,
        page_size,
        k_width,
        v_width,
        STEPS=steps,
        COLUMNS=columns,
    )
