"""Puts the parts of a split attention together, as if one softmax had run over all of them."""

import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.triton.tiles import power_of_two


@triton.jit
def _merge_splits_kernel(
    parts_ptr,
    lses_ptr,
    out_ptr,
    lse_ptr,
    splits,
    stride_parts_split,
    stride_parts_row,
    stride_parts_head,
    stride_lses_split,
    stride_lses_row,
    stride_out_row,
    stride_out_head,
    stride_lse_row,
    DIM: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    split = tl.arange(0, BLOCK_SPLITS).to(tl.int64)
    dims = tl.arange(0, BLOCK_DIM)

    lses_at = split * stride_lses_split + row * stride_lses_row + head
    lses = tl.load(lses_ptr + lses_at, mask=split < splits, other=float("-inf"))
    peak = tl.max(lses, axis=0)
    base = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp(lses - base)
    total = tl.sum(weights, axis=0)
    # A part that sees nothing was not written.
    is_read = (weights != 0.0)[:, None] & (dims < DIM)[None, :]
    parts_at = split * stride_parts_split + row * stride_parts_row + head * stride_parts_head
    parts = tl.load(parts_ptr + parts_at[:, None] + dims[None, :], mask=is_read, other=0.0)
    safe = tl.where(total == 0.0, 1.0, total)
    out = tl.sum(parts * weights[:, None], axis=0) / safe

    out_at = row * stride_out_row + head * stride_out_head + dims
    tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=dims < DIM)
    if lse_ptr is not None:
        tl.store(lse_ptr + row * stride_lse_row + head, peak + tl.log(safe))


def merge_splits(parts: Tensor, lses: Tensor, out: Tensor, lse: Tensor | None) -> None:
    """Merge parts [splits, rows, heads, dim] f32, lses [splits, rows, heads] f32 into out, lse."""
    splits, rows, heads, dim = parts.shape
    _merge_splits_kernel[(rows, heads)](
        parts,
        lses,
        out,
        lse,
        splits,
        *parts.stride()[:3],
        *lses.stride()[:2],
        *out.stride()[:2],
        0 if lse is None else lse.stride(0),
        DIM=dim,
        BLOCK_SPLITS=1 << (splits - 1).bit_length(),
        BLOCK_DIM=power_of_two(dim),
        num_warps=4,
    )
