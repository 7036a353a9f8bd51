"""Merges attentions of the same queries over different rows by log-sum-exp: two, or all splits."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.triton.dependent_launch import launch_options, wait_for_writes
from specdecode_kernels.triton.tiles import MAX_SPLITS, power_of_two

ELEMENTS = 2048
"""Most elements of one row that a program merges."""


@triton.jit
def _merge_states_kernel(
    out_a,  # this and the following: pointer and strides, of dim 1 for out and lse
    lse_a,
    out_b,
    lse_b,
    out,
    lse,
    heads,
    DIM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64) * HEADS + tl.arange(0, HEADS)
    is_head = head < heads
    dims = tl.arange(0, BLOCK_DIM)
    is_dim = (dims < DIM)[None, :]

    a = tl.load(lse_a[0] + row * lse_a[1] + head * lse_a[2], mask=is_head, other=float("-inf"))
    b = tl.load(lse_b[0] + row * lse_b[1] + head * lse_b[2], mask=is_head, other=float("-inf"))
    peak = tl.maximum(a, b)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weight_a = tl.exp(a - base)
    weight_b = tl.exp(b - base)
    total = weight_a + weight_b
    total = tl.where(total == 0.0, 1.0, total)
    mixed = _weighted(out_a, weight_a, row, head, dims, is_dim)
    mixed += _weighted(out_b, weight_b, row, head, dims, is_dim)
    mixed = mixed / total[:, None]

    out_ptr, stride_row, stride_head = out
    at = row * stride_row + head[:, None] * stride_head + dims[None, :]
    tl.store(out_ptr + at, mixed.to(out_ptr.dtype.element_ty), mask=is_head[:, None] & is_dim)
    tl.store(lse[0] + row * lse[1] + head, peak + tl.log(total), mask=is_head)


@triton.jit
def _weighted(out, weight, row, head, dims, is_dim):
    pointer, stride_row, stride_head, stride_dim = out
    at = row * stride_row + head[:, None] * stride_head + dims[None, :] * stride_dim
    # What a state that sees nothing holds is not read: it may be anything.
    read = tl.load(pointer + at, mask=is_dim & (weight != 0.0)[:, None], other=0.0)
    return read.to(tl.float32) * weight[:, None]


def merge_states(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    rows, heads, dim = out_a.shape
    out = torch.empty(rows, heads, dim, dtype=out_a.dtype, device=out_a.device)
    lse = torch.empty(rows, heads, dtype=torch.float32, device=out_a.device)
    if not rows:
        return out, lse
    dims = power_of_two(dim)
    block = max(1, min(1 << (heads - 1).bit_length(), ELEMENTS // dims))
    _merge_states_kernel[(rows, triton.cdiv(heads, block))](
        (out_a, *out_a.stride()),
        (lse_a, *lse_a.stride()),
        (out_b, *out_b.stride()),
        (lse_b, *lse_b.stride()),
        (out, *out.stride()[:2]),
        (lse, lse.stride(0)),
        heads,
        DIM=dim,
        HEADS=block,
        BLOCK_DIM=dims,
        num_warps=4,
    )
    return out, lse


@triton.jit(do_not_specialize=["splits"])
def _merge_splits_kernel(
    parts,  # [splits, rows, heads, dim], this and the following contiguous
    lses,  # [splits, rows, heads]
    out,  # [rows, heads, dim]
    lse,  # [rows, heads]
    splits,
    DIM: tl.constexpr,
    MAX_SPLITS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_writes(PDL)
    heads = tl.num_programs(1)
    row_head = tl.program_id(0).to(tl.int64) * heads + tl.program_id(1)
    split = tl.arange(0, MAX_SPLITS).to(tl.int64)
    dims = tl.arange(0, BLOCK_DIM)

    places = split * tl.num_programs(0) * heads + row_head
    split_lses = tl.load(lses + places, mask=split < splits, other=float("-inf"))
    peak = tl.max(split_lses, axis=0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp(split_lses - base)
    total = tl.sum(weights, axis=0)
    # A part that sees nothing was not written.
    is_read = (weights != 0.0)[:, None] & (dims < DIM)[None, :]
    parts_at = places[:, None] * DIM + dims[None, :]
    read = tl.load(parts + parts_at, mask=is_read, other=0.0)
    safe = tl.where(total == 0.0, 1.0, total)
    mixed = tl.sum(read * weights[:, None], axis=0) / safe

    tl.store(out + row_head * DIM + dims, mixed.to(out.dtype.element_ty), mask=dims < DIM)
    if lse is not None:
        tl.store(lse + row_head, peak + tl.log(safe))


def merge_splits(
    parts: Tensor,  # [splits, rows, heads, dim] f32
    lses: Tensor,  # [splits, rows, heads] f32
    out: Tensor,
    lse: Tensor | None,
) -> None:
    """Merge up to `MAX_SPLITS` splits by one kernel, so that their number compiles nothing."""
    splits, rows, heads, dim = parts.shape
    _merge_splits_kernel[(rows, heads)](
        parts,
        lses,
        out,
        lse,
        splits,
        DIM=dim,
        MAX_SPLITS=MAX_SPLITS,
        BLOCK_DIM=power_of_two(dim),
        num_warps=4,
        **launch_options(),
    )
