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
def _cast(x, inverse_scale, MOST: tl.constexpr):
    # MOST: the greatest value of a scaled type, beyond which one saturates; 0 where not scaled.
    if MOST > 0:
        x = x.to(tl.float32) * inverse_scale
        x = tl.clamp(x, -MOST, MOST, propagate_nan=tl.PropagateNan.ALL)
    return x


@triton.jit
def _store_kv_kernel(
    k_pool_ptr,
    v_pool_ptr,
    slot_mapping_ptr,
    k_ptr,
    v_ptr,
    width,
    inverse_k_scale,
    inverse_v_scale,
    stride_k_pool_row,
    stride_k_pool_head,
    stride_k_pool_dim,
    stride_v_pool_row,
    stride_v_pool_head,
    stride_v_pool_dim,
    stride_slot_mapping,
    stride_k_row,
    stride_k_head,
    stride_k_dim,
    stride_v_row,
    stride_v_head,
    stride_v_dim,
    DIM: tl.constexpr,
    MOST: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pool_row = tl.load(slot_mapping_ptr + row * stride_slot_mapping)
    element = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    is_element = element < width
    head = (element // DIM).to(tl.int64)
    dim = element % DIM

    k_at = row * stride_k_row + head * stride_k_head + dim * stride_k_dim
    k = _cast(tl.load(k_ptr + k_at, mask=is_element, other=0.0), inverse_k_scale, MOST)
    k_to = pool_row * stride_k_pool_row + head * stride_k_pool_head + dim * stride_k_pool_dim
    tl.store(k_pool_ptr + k_to, k.to(k_pool_ptr.dtype.element_ty), mask=is_element)

    v_at = row * stride_v_row + head * stride_v_head + dim * stride_v_dim
    v = _cast(tl.load(v_ptr + v_at, mask=is_element, other=0.0), inverse_v_scale, MOST)
    v_to = pool_row * stride_v_pool_row + head * stride_v_pool_head + dim * stride_v_pool_dim
    tl.store(v_pool_ptr + v_to, v.to(v_pool_ptr.dtype.element_ty), mask=is_element)


def store_kv(kv: LayerKV, slot_mapping: Tensor, k: Tensor, v: Tensor) -> None:
    """Write row by row; which of two writes to one row wins is left open."""
    new, kv_heads, dim = k.shape
    width = kv_heads * dim
    if not new or not width:
        return
    is_scaled = kv.k.dtype == FLOAT8
    elements = min(BLOCK, power_of_two(width))
    _store_kv_kernel[(new, triton.cdiv(width, elements))](
        kv.k,
        kv.v,
        slot_mapping,
        k,
        v,
        width,
        1.0 / kv.scale.k,
        1.0 / kv.scale.v,
        *kv.k.stride(),
        *kv.v.stride(),
        slot_mapping.stride(0),
        *k.stride(),
        *v.stride(),
        DIM=dim,
        MOST=torch.finfo(kv.k.dtype).max if is_scaled else 0.0,
        ELEMENTS=elements,
        num_warps=4,
    )
