"""The norm of each row, or of its sum with an update or its parts: one program per row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import as_rows
from specdecode_kernels.triton.dependent_launch import launch_options, wait_for_writes
from specdecode_kernels.triton.tiles import warps_for


@triton.jit
def rms_norm_kernel(
    x_ptr,
    update_ptr,
    weight_ptr,
    summed_ptr,
    out_ptr,
    stride_x,
    stride_update,
    stride_part,
    dim,
    eps,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    PDL: tl.constexpr,
):
    wait_for_writes(PDL)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < dim
    x = tl.load(x_ptr + row * stride_x + columns, mask=inside, other=0.0).to(tl.float32)
    if PARTS:
        places = update_ptr + row * stride_update + columns
        update = tl.load(places, mask=inside, other=0.0)
        if PARTS > 1:
            total = update.to(tl.float32)
            for part in tl.static_range(1, PARTS):
                total += tl.load(places + part * stride_part, mask=inside, other=0.0).to(tl.float32)
            update = total.to(summed_ptr.dtype.element_ty)  # as a sum of its own would be stored
        summed = (x + update.to(tl.float32)).to(summed_ptr.dtype.element_ty)
        tl.store(summed_ptr + row * dim + columns, summed, mask=inside)
        x = summed.to(tl.float32)  # what the next layer reads is what is normalised
    scale = tl.rsqrt(tl.sum(x * x) / dim + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    normed = x * scale * weight
    tl.store(out_ptr + row * dim + columns, normed.to(out_ptr.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows = as_rows(x)
    normed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(rows, None, weight, eps, None, normed)
    return normed


def add_rms_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    summed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    normed = torch.empty_like(summed)
    count = 1 if update.dim() == x.dim() else len(update)
    parts = as_rows(update).unflatten(0, (count, -1)) if x.numel() else None
    _launch(as_rows(x), parts, weight, eps, summed, normed)
    return summed, normed


def _launch(
    rows: Tensor,
    parts: Tensor | None,
    weight: Tensor,
    eps: float,
    summed: Tensor | None,
    normed: Tensor,
) -> None:
    """Norm `rows` [rows, dim], plus [parts, rows, dim] if there are any; outputs are contiguous."""
    count, dim = rows.shape
    if not count:
        return
    block = triton.next_power_of_2(dim)
    strides = (0, 0) if parts is None else (parts.stride(1), parts.stride(0))
    rms_norm_kernel[(count,)](
        rows,
        rows if parts is None else parts,
        weight.contiguous(),
        normed if summed is None else summed,
        normed,
        rows.stride(0),
        *strides,
        dim,
        eps,
        PARTS=0 if parts is None else len(parts),
        BLOCK=block,
        num_warps=warps_for(block),
        **launch_options(),
    )
