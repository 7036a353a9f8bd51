"""Linear maps whose weights are quantized; plain weights go to torch.

The tile of outputs and inputs depends on the type alone, so that every output is one sum over the
inputs in their order. It has not been timed on a GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import as_rows
from specdecode_kernels.packed_weights import PackedWeight
from specdecode_kernels.torch import linear as reference
from specdecode_kernels.triton.quantized_tiles import (
    add_products,
    finished,
    tile_arguments,
    tile_inputs,
)
from specdecode_kernels.triton.tiles import dot_type
from specdecode_kernels.weights import QuantizedTensor

FEW_ROWS, MANY_ROWS = 16, 64


@triton.jit(do_not_specialize=("rows",))
def _map_quantized_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    zeros_ptr,
    factors_ptr,
    bias_ptr,
    out_ptr,  # [rows, outputs]
    stride_x,
    rows,
    outputs,
    inputs,
    half,  # this, groups, group and SCALES: see `add_products`
    groups,
    group,
    FORMAT: tl.constexpr,
    SCALES: tl.constexpr,
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row = (row < rows)[:, None]
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = (output < outputs)[None, :]
    of_weight = output.to(tl.int64)[None, :]
    x_at = x_ptr + row.to(tl.int64)[:, None] * stride_x
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, inputs, INPUTS):
        at = start + tl.arange(0, INPUTS)[None, :]
        x = tl.load(x_at + at, mask=is_row & (at < inputs), other=0.0).to(DOT)
        sums = add_products(
            sums, x, values_ptr, scales_ptr, zeros_ptr, factors_ptr, of_weight, start, is_output,
            inputs, half, groups, group, FORMAT, SCALES, DOT,
        )  # fmt: skip
    sums = finished(sums, factors_ptr, bias_ptr, of_weight, is_output)
    out_at = out_ptr + row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(out_at, sums.to(out_ptr.dtype.element_ty), mask=is_row & is_output)


def linear(
    x: Tensor, weight: Tensor | QuantizedTensor | PackedWeight, bias: Tensor | None
) -> Tensor:
    """Launch on a quantized weight; a few rows take tiles of their own."""
    if not isinstance(weight, QuantizedTensor):
        assert isinstance(weight, Tensor)  # there is no `pack_weight`
        return reference.linear(x, weight, bias)
    x = as_rows(weight.ordered(x))
    rows, (outputs, inputs) = x.shape[0], weight.shape
    out = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if not rows:
        return out
    is_narrow = x.element_size() == 2
    height = MANY_ROWS if is_narrow and rows > FEW_ROWS else FEW_ROWS
    width, most_inputs = (128, 64) if is_narrow else (32, 32)
    step = tile_inputs(weight, most_inputs, most_inputs)
    parts, sizes, (form, scales) = tile_arguments(weight, step)
    _map_quantized_kernel[(triton.cdiv(outputs, width), triton.cdiv(rows, height))](
        x,
        *parts,
        bias,
        out,
        x.stride(0),
        rows,
        outputs,
        inputs,
        *sizes,
        FORMAT=form,
        SCALES=scales,
        DOT=dot_type(x.dtype),
        ROWS=height,
        OUTPUTS=width,
        INPUTS=step,
        num_warps=4,
        num_stages=3,
    )
    return out
