"""Linear maps whose weights are quantized; plain weights go to torch.

The tile of outputs and inputs depends on the type alone, so that every output is one sum over the
inputs in their order. Rows of 16 bits have tiles of 64 rows where `RowPaths` puts them in blocks,
whose instructions may add in another order, else of 16 or 32, whose instructions are the same. It
has not been timed on a GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import as_rows
from specdecode_kernels.packed_weights import PackedWeight
from specdecode_kernels.row_paths import RowPaths
from specdecode_kernels.torch import linear as reference
from specdecode_kernels.triton.quantized_tiles import (
    add_products,
    finished,
    tile_arguments,
    tile_inputs,
)
from specdecode_kernels.triton.tiles import dot_type
from specdecode_kernels.weights import QuantizedTensor

FEW_ROWS, SOME_ROWS, MANY_ROWS = 16, 32, 64


@triton.jit(do_not_specialize=("rows",))
def _map_quantized_kernel(
    x_ptr,
    values_ptr,
    scales_ptr,
    zeros_ptr,
    factors_ptr,
    bias_ptr,
    rows_ptr,  # [rows] i64, which of x and out; None: all in order
    out_ptr,  # [.., outputs]
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
    if rows_ptr is not None:
        row = tl.load(rows_ptr + row, mask=row < rows, other=0)
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
    paths: RowPaths,
    x: Tensor,
    weight: Tensor | QuantizedTensor | PackedWeight,
    bias: Tensor | None,
) -> Tensor:
    """Launch on a quantized weight, once for each path that rows take."""
    if not isinstance(weight, QuantizedTensor):
        assert isinstance(weight, Tensor)  # there is no `pack_weight`
        return reference.linear(x, weight, bias)
    x = as_rows(weight.ordered(x))
    out = torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    is_narrow = x.element_size() == 2
    split = paths.of(x) if is_narrow else None
    if split is not None:
        _launch(x, weight, bias, out, split.many, MANY_ROWS)
    few = len(x) if split is None else len(split.few)
    if few:
        height = SOME_ROWS if is_narrow and few > FEW_ROWS else FEW_ROWS
        _launch(x, weight, bias, out, None if split is None else split.few, height)
    return out


def _launch(
    x: Tensor,
    weight: QuantizedTensor,
    bias: Tensor | None,
    out: Tensor,
    chosen: Tensor | None,
    height: int,
) -> None:
    """Map rows in tiles of `height` rows.

    Args:
        chosen: which rows [n] i64; None: all.
    """
    rows = len(x) if chosen is None else len(chosen)
    outputs, inputs = weight.shape
    width, most_inputs = (128, 64) if x.element_size() == 2 else (32, 32)
    step = tile_inputs(weight, most_inputs, most_inputs)
    parts, sizes, (form, scales) = tile_arguments(weight, step)
    _map_quantized_kernel[(triton.cdiv(outputs, width), triton.cdiv(rows, height))](
        x,
        *parts,
        bias,
        chosen,
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
