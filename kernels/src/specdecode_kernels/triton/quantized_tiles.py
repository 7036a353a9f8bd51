"""Multiplies rows by tiles of weights that may be quantized, in other kernels.

Integers of 8 bits and float8 are exact in every type, so that products are those of unscaled
numbers. A scale for each output multiplies the finished sum; that of a group of float8 multiplies
the products of a tile, in float32. Integers of 4 bits are multiplied by their scales before, and
rounded to the type of the product.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.target_info import cuda_capability_geq

from specdecode_kernels.weights import NumberFormat, QuantizedTensor

PRECISION = tl.constexpr("tf32x3")
"""Of float32: three products of TF32, as in attention."""
INPUTS_OF_GROUP = 32
"""Inputs of a tile of int4, all of one group, so that a tile needs one scale for each output."""


@triton.jit
def add_products(
    sums,  # [ROWS, OUTPUTS] f32
    x,  # [ROWS, INPUTS]
    values_ptr,
    scales_ptr,
    zeros_ptr,
    row,  # [1, OUTPUTS] i64: outputs of all matrices, one below the other
    start,  # the first of the inputs
    at,  # [INPUTS, 1]: the inputs, of one group
    is_output,  # [1, OUTPUTS]
    is_input,  # [INPUTS, 1]
    inputs,
    groups,
    group,  # inputs that share a scale
    FORMAT: tl.constexpr,  # None: weights of the type of the rows
    IS_GROUPED: tl.constexpr,
    DOT: tl.constexpr,
):
    mask = is_input & is_output
    if FORMAT == "int4":
        byte = tl.load(values_ptr + row * ((inputs + 1) // 2) + at // 2, mask=mask, other=0)
        integer = ((byte.to(tl.int32) >> (at % 2 * 4)) & 15) - 8
        place = row * groups + start // group
        if zeros_ptr is not None:
            integer -= tl.load(zeros_ptr + place, mask=is_output, other=0).to(tl.int32)
        scale = tl.load(scales_ptr + place, mask=is_output, other=0.0)
        weight = tl.where(is_input, integer.to(tl.float32) * scale, 0.0).to(DOT)
    else:
        weight = tl.load(values_ptr + row * inputs + at, mask=mask, other=0)
        weight = _widened(weight, DOT) if FORMAT == "float8_e4m3fn" else weight.to(DOT)
        if IS_GROUPED:
            scale = tl.load(scales_ptr + row * groups + start // group, mask=is_output, other=0.0)
            return sums + tl.dot(x, weight, input_precision=PRECISION) * scale
    return tl.dot(x, weight, sums, input_precision=PRECISION)


@triton.jit
def _widened(bits, DTYPE: tl.constexpr):
    # Bytes of float8, never NaN, as numbers; by the device's own conversion where there is one.
    if cuda_capability_geq(9, 0):
        return bits.to(tl.float8e4nv, bitcast=True).to(DTYPE)
    # Exponent and mantissa lie side by side in float16 too, whose bias is 15 instead of 7.
    bits = bits.to(tl.int16)
    moved = ((bits & 0x80) << 8) | ((bits & 0x7F) << 7)
    return (moved.to(tl.float16, bitcast=True) * 256.0).to(DTYPE)


@triton.jit
def finished(sums, scales_ptr, bias_ptr, row, mask, FORMAT: tl.constexpr, IS_GROUPED: tl.constexpr):
    # Sums [ROWS, OUTPUTS] times the scales of their outputs, where there are such, plus biases.
    if FORMAT is not None and not IS_GROUPED:
        sums *= tl.load(scales_ptr + row, mask=mask, other=0.0)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + row, mask=mask, other=0.0).to(tl.float32)
    return sums


TileArguments = tuple[
    tuple[Tensor, Tensor | None, Tensor | None], tuple[int, int], tuple[NumberFormat | None, bool]
]


def tile_arguments(weight: Tensor | QuantizedTensor) -> TileArguments:
    """Return values, scales and zero points; groups and group; FORMAT and IS_GROUPED."""
    if isinstance(weight, Tensor):
        return (weight, None, None), (1, 1), (None, False)
    values, form = weight.values, weight.precision
    if form.format == "float8_e4m3fn":
        values = values.view(torch.uint8)  # a type that every device has
    parts = values, weight.scales, weight.zeros
    return parts, (weight.scales.shape[-1], weight.group), (form.format, form.group > 0)


def tile_inputs(weight: Tensor | QuantizedTensor, most: int, most_of_float8: int) -> int:
    """Return how many inputs a tile has, all of one group where inputs have groups."""
    if isinstance(weight, Tensor) or weight.format == "int8":
        return most
    if weight.format == "int4":
        return INPUTS_OF_GROUP
    return min(most_of_float8, weight.precision.group or most_of_float8)
