"""Rows of the accepted path copied to the front of a new tensor: one program per piece of a row."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_BLOCK = 2048


@triton.jit(do_not_specialize=("stride_path", "path_length"))
def gather_accepted_kernel(
    values_ptr,
    path_ptr,
    out_ptr,
    stride_batch,
    stride_node,
    stride_element,
    stride_path,
    path_length,
    width,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    request, step = row // path_length, row % path_length
    columns = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    node = tl.load(path_ptr + request * stride_path + step)
    values_ptr += request * stride_batch + node * stride_node
    values = tl.load(values_ptr + columns * stride_element, mask=inside)
    tl.store(out_ptr + row * width + columns, values, mask=inside)


def gather_accepted(values: Tensor, path: Tensor) -> Tensor:
    batch, length = path.shape
    taken = torch.empty(
        (batch, length, *values.shape[2:]), dtype=values.dtype, device=values.device
    )
    if not taken.numel():
        return taken
    path = path if path.stride(1) == 1 else path.contiguous()
    rows = values.reshape(*values.shape[:2], -1)
    width = rows.shape[2]
    block = min(triton.next_power_of_2(width), MAX_BLOCK)
    gather_accepted_kernel[(batch * length, triton.cdiv(width, block))](
        rows,
        path,
        taken,
        *rows.stride(),
        path.stride(0),
        length,
        width,
        BLOCK=block,
    )
    return taken
