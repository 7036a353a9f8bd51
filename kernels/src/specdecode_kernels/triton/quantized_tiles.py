"""Multiplies rows by tiles of weights that may be quantized, in other kernels.

Integers of 8 bits, also less zero points, and float8 are exact in every type, so that products are
those of unscaled numbers. What scales a whole output multiplies the finished sum; the scale of a
group of float8 multiplies the products of a tile, in float32. Integers of 4 bits, and those of 8
bits in groups, are multiplied by their scales before, and rounded to the type of the product.

Float4 is multiplied by its scales before too, but exactly, so that a tile contains several groups
and needs no sums of its own. Numbers have 2 significant bits, scales in float8 (NVFP4) have 4:
their products, from 2^-10 to 2688, are numbers of every type. Powers of two (MXFP4) exceed float16
but not bfloat16; rows of float16 are multiplied by such weights as TF32, which has the 11
significant bits of float16 and the exponents of float32.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.target_info import cuda_capability_geq

from specdecode_kernels.weights import NumberFormat, QuantizedTensor, is_halved

PRECISION = tl.constexpr("tf32x3")
"""Of float32: three products of TF32, as in attention."""
INPUTS_OF_GROUP = 32
"""Inputs of a tile of int4, all of one group, so that a tile needs one scale for each output."""
INPUTS_OF_TF32 = 32
"""Of a tile of float4 that is multiplied as TF32: with 64, capability 8.0 spills registers."""
FLOAT4_UNIT = tl.constexpr(2.0**126)  # the exponent's bias is 1 in float4 and 127 in float32
SMALLEST_E8M0 = tl.constexpr(0x400000)  # 2^-127, a subnormal number of float32


@triton.jit
def add_products(
    sums,  # [ROWS, OUTPUTS] f32
    x,  # [ROWS, INPUTS]
    values_ptr,
    scales_ptr,
    zeros_ptr,
    factors_ptr,  # of outputs; next to scales of float4 if these are in float8
    row,  # [1, OUTPUTS] i64: outputs of all matrices, one below the other
    start,  # the first of the tile's inputs, which are of one group unless they are float4
    is_output,  # [1, OUTPUTS]
    inputs,
    half,  # bytes of an output if they contain two numbers each
    groups,
    group,  # inputs that share a scale
    FORMAT: tl.constexpr,  # None: weights of the type of the rows
    SCALES: tl.constexpr,  # of an output in a tile, 0 if all inputs share one
    DOT: tl.constexpr,
):
    if FORMAT == "float4_e2m1fn":
        weight = _load_float4(
            values_ptr, scales_ptr, factors_ptr, row, start, is_output, half, groups, group,
            x.shape[1], SCALES,
        )  # fmt: skip
        if factors_ptr is None and x.dtype.is_fp16():
            return tl.dot(x.to(tl.float32), weight, sums, input_precision="tf32")
        return tl.dot(x, weight.to(DOT), sums, input_precision=PRECISION)
    at = start + tl.arange(0, x.shape[1])[:, None]
    mask = (at < inputs) & is_output
    if FORMAT == "int4":
        byte = tl.load(values_ptr + row * half + at // 2, mask=mask, other=0)
        integer = ((byte.to(tl.int32) >> (at % 2 * 4)) & 15) - 8
        place = row * groups + start // group
        if zeros_ptr is not None:
            integer -= tl.load(zeros_ptr + place, mask=is_output, other=0).to(tl.int32)
        scale = tl.load(scales_ptr + place, mask=is_output, other=0.0)
        weight = tl.where(at < inputs, integer.to(tl.float32) * scale, 0.0).to(DOT)
    else:
        weight = tl.load(values_ptr + row * inputs + at, mask=mask, other=0)
        if (
            zeros_ptr is not None
        ):  # of int8: differences have 8 bits and a sign, exact in every type
            zero = tl.load(zeros_ptr + row * groups + start // group, mask=is_output, other=0)
            weight = tl.where(at < inputs, weight.to(tl.int16) - zero.to(tl.int16), 0)
        if SCALES:
            scale = tl.load(scales_ptr + row * groups + start // group, mask=is_output, other=0.0)
        if SCALES and FORMAT == "int8":
            weight = (weight.to(tl.float32) * scale).to(DOT)
        else:
            weight = _widened(weight, DOT) if FORMAT == "float8_e4m3fn" else weight.to(DOT)
            if SCALES:
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
def _load_float4(
    values_ptr,
    scales_ptr,
    factors_ptr,
    row,
    start,
    is_output,
    half,
    groups,
    group,
    INPUTS: tl.constexpr,
    SCALES: tl.constexpr,
):
    # Numbers times scales [INPUTS, OUTPUTS] f32. A thread loads a byte once, for two inputs; the
    # number after an odd number of inputs meets a zero of the rows.
    OUTPUTS: tl.constexpr = row.shape[1]
    at = start // 2 + tl.arange(0, INPUTS // 2)[:, None]
    byte = tl.load(values_ptr + row * half + at, mask=(at < half) & is_output, other=0)
    pairs = tl.join(_float4(byte), _float4(byte >> 4))
    numbers = pairs.permute(0, 2, 1).reshape(INPUTS, OUTPUTS)
    first = start // group if SCALES == 1 else start // (INPUTS // SCALES)  # no division
    at = first + tl.arange(0, SCALES)[:, None]
    byte = tl.load(scales_ptr + row * groups + at, mask=(at < groups) & is_output, other=0)
    scale = _power_of_two(byte) if factors_ptr is None else _widened(byte, tl.float32)
    wide = tl.broadcast_to(scale[:, None, :], [SCALES, INPUTS // SCALES, OUTPUTS])
    return numbers * wide.reshape(INPUTS, OUTPUTS)


@triton.jit
def _float4(bits):
    # Sign, exponent and mantissa to where they are in float32; exact for the subnormal 0.5, too.
    bits = bits.to(tl.int32)
    moved = ((bits & 8) << 28) | ((bits & 7) << 22)
    return moved.to(tl.float32, bitcast=True) * FLOAT4_UNIT


@triton.jit
def _power_of_two(byte):
    # 2^(byte - 127): the exponent of float32, but for a byte of 0.
    bits = tl.where(byte == 0, SMALLEST_E8M0, byte.to(tl.int32) << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def finished(sums, factors_ptr, bias_ptr, row, mask):
    # Sums [ROWS, OUTPUTS] times the factors of their outputs, where there are such, plus biases.
    if factors_ptr is not None:
        sums *= tl.load(factors_ptr + row, mask=mask, other=0.0)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + row, mask=mask, other=0.0).to(tl.float32)
    return sums


TileArguments = tuple[
    tuple[Tensor, Tensor | None, Tensor | None, Tensor | None],
    tuple[int | None, int, int],
    tuple[NumberFormat | None, int],
]


def tile_arguments(weight: Tensor | QuantizedTensor, inputs: int) -> TileArguments:
    """Return what kernels take of a weight, whose tiles have so many inputs.

    That is: values, scales of groups, zero points and factors of outputs; half, groups and group;
    FORMAT and SCALES. Floats of a byte or less become u8, a type that every device has.

    Raises:
        ValueError: scales of float4 take more than a byte.
    """
    if isinstance(weight, Tensor):
        return (weight, None, None, None), (None, 1, 1), (None, 0)
    values, scales, form = weight.values, weight.scales, weight.precision
    if form.format == "float4_e2m1fn" and form.scale_bytes > 1:
        raise ValueError(
            f"scales of a weight of float4 are {scales.dtype}; kernels take float8_e8m0fnu, or "
            "float8_e4m3fn with a factor for each output"
        )
    if values.dtype.is_floating_point:
        values = values.view(torch.uint8)
    half = values.shape[-1] if is_halved(form.format) else None
    sizes = half, scales.shape[-1], weight.group
    if not form.group:
        return (values, None, weight.zeros, scales), sizes, (form.format, 0)
    if form.scale_bytes == 1:
        scales = scales.view(torch.uint8)
    shared = -(-inputs // form.group)
    return (values, scales, weight.zeros, weight.factors), sizes, (form.format, shared)


def tile_inputs(weight: Tensor | QuantizedTensor, most: int, most_of_float8: int) -> int:
    """Return how many inputs a tile has: whole groups of float4, of others a group at most.

    `most_of_float8` is for weights or scales in float8.
    """
    if isinstance(weight, Tensor):
        return most
    if weight.format == "int8":
        return min(most, weight.precision.group or most)
    if weight.format == "int4":
        return INPUTS_OF_GROUP
    if weight.format == "float4_e2m1fn":
        if weight.factors is not None:
            return most_of_float8
        return INPUTS_OF_TF32 if weight.dtype == torch.float16 else most
    return min(most_of_float8, weight.precision.group or most_of_float8)
