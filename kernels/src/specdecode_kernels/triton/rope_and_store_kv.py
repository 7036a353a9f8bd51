"""Rotary angles applied to q and k where they lie, and k and v written to the pools: one launch.

A launch for each costs as much as both at small batches: an empty one takes 5 µs in a CUDA graph
(docs/gpu.md).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import FLOAT8, LayerKV
from specdecode_kernels.triton.apply_rope import HEADS, load_angles, rotate_heads
from specdecode_kernels.triton.dependent_launch import launch_options, wait_for_writes
from specdecode_kernels.triton.store_kv import as_stored
from specdecode_kernels.triton.tiles import power_of_two


@triton.jit
def _rope_and_store_kv_kernel(
    k_pool,  # this and the following: pointer and strides
    v_pool,
    slot_mapping,
    q,
    k,
    v,
    cos,
    sin,
    q_heads,
    kv_heads,
    half,
    v_dim,
    inverse_k_scale,
    inverse_v_scale,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    V_DIM: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_writes(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    q_parts, kv_parts = tl.cdiv(q_heads, HEADS), tl.cdiv(kv_heads, HEADS)
    pool_row = tl.load(slot_mapping[0] + row * slot_mapping[1])
    c, s = load_angles(cos[0], sin[0], cos[1], sin[1], row, half, HALF)
    if part < q_parts:
        at = q[0] + row * q[1]
        rotate_heads(at, q[2], part * HEADS, q_heads, c, s, half, HEADS, HALF)
    elif part < q_parts + kv_parts:
        first_head = (part - q_parts) * HEADS
        at = k[0] + row * k[1]
        first, second = rotate_heads(at, k[2], first_head, kv_heads, c, s, half, HEADS, HALF)
        heads = first_head + tl.arange(0, HEADS)[:, None]
        pairs = tl.arange(0, HALF)[None, :]
        is_key = (heads < kv_heads) & (pairs < half)
        key_ptr = k_pool[0] + pool_row * k_pool[1] + heads.to(tl.int64) * k_pool[2]
        first = as_stored(first, k_pool[0], inverse_k_scale)
        tl.store(key_ptr + pairs * k_pool[3], first, mask=is_key)
        second = as_stored(second, k_pool[0], inverse_k_scale)
        tl.store(key_ptr + (half + pairs) * k_pool[3], second, mask=is_key)
    else:
        heads = (part - q_parts - kv_parts) * HEADS + tl.arange(0, HEADS)[:, None]
        dims = tl.arange(0, V_DIM)[None, :]
        is_value = (heads < kv_heads) & (dims < v_dim)
        x = tl.load(v[0] + row * v[1] + heads * v[2] + dims * v[3], mask=is_value, other=0.0)
        value_ptr = v_pool[0] + pool_row * v_pool[1] + heads.to(tl.int64) * v_pool[2]
        x = as_stored(x, v_pool[0], inverse_v_scale)
        tl.store(value_ptr + dims * v_pool[3], x, mask=is_value)


def rope_and_store_kv(
    kv: LayerKV,
    slot_mapping: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
) -> tuple[Tensor, Tensor]:
    """Launch on q and k [rows, heads, dim] of any row and head stride; both are overwritten."""
    q, k, cos, sin = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, cos, sin))
    rows, q_heads, dim = q.shape
    kv_heads, v_dim = v.shape[1:]
    k_pool, v_pool = kv.k, kv.v
    if k_pool.dtype == FLOAT8:
        k_pool, v_pool = k_pool.view(torch.uint8), v_pool.view(torch.uint8)
    parts = triton.cdiv(q_heads, HEADS) + triton.cdiv(kv_heads, HEADS) * (2 if v_dim else 1)
    if rows and parts and dim:
        _rope_and_store_kv_kernel[(rows, parts)](
            (k_pool, *k_pool.stride()),
            (v_pool, *v_pool.stride()),
            (slot_mapping, *slot_mapping.stride()),
            (q, *q.stride()[:2]),
            (k, *k.stride()[:2]),
            (v, *v.stride()),
            (cos, cos.stride(0)),
            (sin, sin.stride(0)),
            q_heads,
            kv_heads,
            dim // 2,
            v_dim,
            1.0 / kv.scale.k,
            1.0 / kv.scale.v,
            HEADS=HEADS,
            HALF=power_of_two(dim // 2),
            V_DIM=power_of_two(v_dim),
            **launch_options(),
        )
    return q, k
