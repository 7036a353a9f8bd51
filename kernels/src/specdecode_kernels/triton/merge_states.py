"""Merges two attentions of the same queries over different rows, by their log-sum-exp."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.triton.tiles import power_of_two

ELEMENTS = 2048
"""Most elements of one row that a program merges."""


@triton.jit
def _merge_states_kernel(
    out_a_ptr,
    lse_a_ptr,
    out_b_ptr,
    lse_b_ptr,
    out_ptr,
    lse_ptr,
    stride_a_row,
    stride_a_head,
    stride_a_dim,
    stride_b_row,
    stride_b_head,
    stride_b_dim,
    stride_lse_a_row,
    stride_lse_a_head,
    stride_lse_b_row,
    stride_lse_b_head,
    stride_out_row,
    stride_out_head,
    stride_lse_row,
    heads,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64) * HEADS + tl.arange(0, HEADS)
    is_head = head < heads
    dims = tl.arange(0, BLOCK_DIM)
    nothing = float("-inf")

    a_lse_at = row * stride_lse_a_row + head * stride_lse_a_head
    b_lse_at = row * stride_lse_b_row + head * stride_lse_b_head
    lse_a = tl.load(lse_a_ptr + a_lse_at, mask=is_head, other=nothing)
    lse_b = tl.load(lse_b_ptr + b_lse_at, mask=is_head, other=nothing)
    peak = tl.maximum(lse_a, lse_b)
    base = tl.where(peak == nothing, 0.0, peak)
    weight_a = tl.exp(lse_a - base)
    weight_b = tl.exp(lse_b - base)
    total = weight_a + weight_b
    total = tl.where(total == 0.0, 1.0, total)
    # What a state that sees nothing holds is not read: it may be anything.
    a_at = row * stride_a_row + head[:, None] * stride_a_head + dims[None, :] * stride_a_dim
    b_at = row * stride_b_row + head[:, None] * stride_b_head + dims[None, :] * stride_b_dim
    is_dim = (dims < DIM)[None, :]
    out_a = tl.load(out_a_ptr + a_at, mask=is_dim & (weight_a != 0.0)[:, None], other=0.0)
    out_b = tl.load(out_b_ptr + b_at, mask=is_dim & (weight_b != 0.0)[:, None], other=0.0)
    out = out_a.to(tl.float32) * weight_a[:, None] + out_b.to(tl.float32) * weight_b[:, None]
    out = out / total[:, None]

    out_at = row * stride_out_row + head[:, None] * stride_out_head + dims[None, :]
    tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=is_head[:, None] & is_dim)
    tl.store(lse_ptr + row * stride_lse_row + head, peak + tl.log(total), mask=is_head)


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    """Merge outs [rows, heads, dim] and lses [rows, heads] f32; same shapes and types out."""
    rows, heads, dim = out_a.shape
    out = torch.empty(rows, heads, dim, dtype=out_a.dtype, device=out_a.device)
    lse = torch.empty(rows, heads, dtype=torch.float32, device=out_a.device)
    if not rows:
        return out, lse
    dims = power_of_two(dim)
    block = max(1, min(1 << (heads - 1).bit_length(), ELEMENTS // dims))
    _merge_states_kernel[(rows, triton.cdiv(heads, block))](
        out_a,
        lse_a,
        out_b,
        lse_b,
        out,
        lse,
        *out_a.stride(),
        *out_b.stride(),
        *lse_a.stride(),
        *lse_b.stride(),
        *out.stride()[:2],
        lse.stride(0),
        heads,
        DIM=dim,
        HEADS=block,
        BLOCK_DIM=dims,
        num_warps=4,
    )
    return out, lse
