"""Writes the keys and values of new rows into the pools, rounded to float8 where these hold it."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import FLOAT8, LayerKV
from specdecode_kernels.triton.tiles import power_of_two

BLOCK = 1024
"""Most elements of one row that a program writes."""


@triton.jit
def _store_row(
    pool, new, row, pool_row, element, width, inverse_scale, DIM: tl.constexpr, MOST: tl.constexpr
):
    # MOST: the greatest value of a scaled type, beyond which one saturates; 0 where not scaled.
    pool_ptr, stride_pool_row, stride_pool_head, stride_pool_dim = pool
    new_ptr, stride_row, stride_head, stride_dim = new
    head = (element // DIM).to(tl.int64)
    dim = element % DIM
    at = row * stride_row + head * stride_head + dim * stride_dim
    x = tl.load(new_ptr + at, mask=element < width, other=0.0)
    if MOST > 0:
        x = x.to(tl.float32) * inverse_scale
        x = tl.clamp(x, -MOST, MOST, propagate_nan=tl.PropagateNan.ALL)
    to = pool_row * stride_pool_row + head * stride_pool_head + dim * stride_pool_dim
    tl.store(pool_ptr + to, x.to(pool_ptr.dtype.element_ty), mask=element < width)


@triton.jit
def _store_kv_kernel(
    k_pool,  # this and the following: pointer and strides
    v_pool,
    slot_mapping,
    k,
    v,
    width,
    inverse_k_scale,
    inverse_v_scale,
    DIM: tl.constexpr,
    MOST: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pool_row = tl.load(slot_mapping[0] + row * slot_mapping[1])
    element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    _store_row(k_pool, k, row, pool_row, element, width, inverse_k_scale, DIM, MOST)
    _store_row(v_pool, v, row, pool_row, element, width, inverse_v_scale, DIM, MOST)


def store_kv(kv: LayerKV, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
    new, kv_heads, dim = k.shape
    width = kv_heads * dim
    if not new or not width:
        return
    is_scaled = kv.k.dtype == FLOAT8
    elements = min(BLOCK, power_of_two(width))
    _store_kv_kernel[(new, triton.cdiv(width, elements))](
        (kv.k, *kv.k.stride()),
        (kv.v, *kv.v.stride()),
        (slot_mapping, *slot_mapping.stride()),
        (k, *k.stride()),
        (v, *v.stride()),
        width,
        1.0 / kv.scale.k,
        1.0 / kv.scale.v,
        DIM=dim,
        MOST=torch.finfo(kv.k.dtype).max if is_scaled else 0.0,
        ELEMENTS=elements,
        num_warps=4,
    )
