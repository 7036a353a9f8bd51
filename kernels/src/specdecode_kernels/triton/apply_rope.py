"""Rotary angles applied to q and k where they lie, in one launch."""

import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.triton.dependent_launch import launch_options, wait_for_writes

HEADS = 8
"""Heads that one program turns."""


@triton.jit
def load_angles(cos_ptr, sin_ptr, stride_cos, stride_sin, row, half, HALF: tl.constexpr):
    """Load the cosines and sines of a row, [1, HALF] in float32."""
    pairs = tl.arange(0, HALF)[None, :]
    cos = tl.load(cos_ptr + row * stride_cos + pairs, mask=pairs < half, other=0.0)
    sin = tl.load(sin_ptr + row * stride_sin + pairs, mask=pairs < half, other=0.0)
    return cos.to(tl.float32), sin.to(tl.float32)


@triton.jit
def rotate_heads(x_ptr, stride_head, first_head, heads, cos, sin, half, HEADS: tl.constexpr, HALF):
    """Turn heads of a row in place; returns both halves [HEADS, HALF] as they were stored."""
    numbers = first_head + tl.arange(0, HEADS)[:, None]
    pairs = tl.arange(0, HALF)[None, :]
    inside = (numbers < heads) & (pairs < half)
    first_ptr = x_ptr + numbers.to(tl.int64) * stride_head + pairs
    first = tl.load(first_ptr, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(first_ptr + half, mask=inside, other=0.0).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    turned_first = (first * cos - second * sin).to(dtype)
    turned_second = (second * cos + first * sin).to(dtype)
    tl.store(first_ptr, turned_first, mask=inside)
    tl.store(first_ptr + half, turned_second, mask=inside)
    return turned_first, turned_second


@triton.jit
def apply_rope_kernel(
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    stride_q_row,
    stride_q_head,
    stride_k_row,
    stride_k_head,
    stride_cos,
    stride_sin,
    q_heads,
    k_heads,
    half,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_writes(PDL)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    q_parts = tl.cdiv(q_heads, HEADS)
    cos, sin = load_angles(cos_ptr, sin_ptr, stride_cos, stride_sin, row, half, HALF)
    if part < q_parts:
        at = q_ptr + row * stride_q_row
        rotate_heads(at, stride_q_head, part * HEADS, q_heads, cos, sin, half, HEADS, HALF)
    else:
        at = k_ptr + row * stride_k_row
        first = (part - q_parts) * HEADS
        rotate_heads(at, stride_k_head, first, k_heads, cos, sin, half, HEADS, HALF)


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Launch on q and k [rows, heads, dim] of any row and head stride; both are overwritten."""
    q, k, cos, sin = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, cos, sin))
    rows, q_heads, dim = q.shape
    parts = triton.cdiv(q_heads, HEADS) + triton.cdiv(k.shape[1], HEADS)
    if rows and parts and dim:
        apply_rope_kernel[(rows, parts)](
            q,
            k,
            cos,
            sin,
            *q.stride()[:2],
            *k.stride()[:2],
            cos.stride(0),
            sin.stride(0),
            q_heads,
            k.shape[1],
            dim // 2,
            HEADS=HEADS,
            HALF=triton.next_power_of_2(dim // 2),
            **launch_options(),
        )
    return q, k
