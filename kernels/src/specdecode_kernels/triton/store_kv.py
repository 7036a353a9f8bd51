"""Writes the keys and values of new rows into the pools, rounded to float8 where these hold it.

Rows are few, so float8 is rounded by integers on every device, also where an instruction does it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import FLOAT8, LayerKV
from specdecode_kernels.triton.dependent_launch import launch_options, wait_for_writes
from specdecode_kernels.triton.float8 import encode_float8
from specdecode_kernels.triton.tiles import power_of_two

BLOCK = 1024
"""Most elements of one row that a program writes."""


@triton.jit
def as_stored(x, pool_ptr, inverse_scale):
    """Convert keys or values to the type of a pool; one of bytes holds scaled float8."""
    if pool_ptr.dtype.element_ty == tl.uint8:
        x = encode_float8(x.to(tl.float32) * inverse_scale)
    return x.to(pool_ptr.dtype.element_ty)


@triton.jit
def _store_row(pool, new, row, pool_row, element, width, inverse_scale, DIM: tl.constexpr):
    pool_ptr, stride_pool_row, stride_pool_head, stride_pool_dim = pool
    new_ptr, stride_row, stride_head, stride_dim = new
    head = (element // DIM).to(tl.int64)
    dim = element % DIM
    at = row * stride_row + head * stride_head + dim * stride_dim
    x = tl.load(new_ptr + at, mask=element < width, other=0.0)
    to = pool_row * stride_pool_row + head * stride_pool_head + dim * stride_pool_dim
    tl.store(pool_ptr + to, as_stored(x, pool_ptr, inverse_scale), mask=element < width)


@triton.jit
def _store_kv_kernel(
    k_pool,  # this and the following: pointer and strides
    v_pool,
    slot_mapping,
    k,
    v,
    width,
    v_width,
    inverse_k_scale,
    inverse_v_scale,
    DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    ELEMENTS: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_writes(PDL)
    row = tl.program_id(0).to(tl.int64)
    pool_row = tl.load(slot_mapping[0] + row * slot_mapping[1])
    element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    _store_row(k_pool, k, row, pool_row, element, width, inverse_k_scale, DIM)
    if V_DIM:  # none of latents, which are cached as keys alone
        _store_row(v_pool, v, row, pool_row, element, v_width, inverse_v_scale, V_DIM)


def store_kv(kv: LayerKV, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
    new, kv_heads, dim = k.shape
    width, v_width = kv_heads * dim, kv_heads * v.shape[2]
    if not new or not width:
        return
    k_pool, v_pool = kv.k, kv.v
    if k_pool.dtype == FLOAT8:
        k_pool, v_pool = k_pool.view(torch.uint8), v_pool.view(torch.uint8)
    widest = max(width, v_width)
    elements = min(BLOCK, power_of_two(widest))
    _store_kv_kernel[(new, triton.cdiv(widest, elements))](
        (k_pool, *k_pool.stride()),
        (v_pool, *v_pool.stride()),
        (slot_mapping, *slot_mapping.stride()),
        (k, *k.stride()),
        (v, *v.stride()),
        width,
        v_width,
        1.0 / kv.scale.k,
        1.0 / kv.scale.v,
        DIM=dim,
        V_DIM=v.shape[2],
        ELEMENTS=elements,
        num_warps=4,
        **launch_options(),
    )
