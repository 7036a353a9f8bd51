"""Loads tiles of weights that may be integers with scales, for products in other kernels."""

import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.weights import IntegerWeight


@triton.jit
def load_weight_tile(
    values_ptr,
    scales_ptr,
    zeros_ptr,
    row,  # [1, OUTPUTS] i64: outputs of all matrices, one below the other
    start,  # the first of the inputs
    at,  # [INPUTS, 1]: the inputs, of integers of 4 bits from one group
    is_output,  # [1, OUTPUTS]
    is_input,  # [INPUTS, 1]
    inputs,
    groups,
    group,  # inputs that share a scale
    BITS: tl.constexpr,  # 0: no integers
    DOT: tl.constexpr,
):
    # Integers of 8 bits are exact in every type: `finished` applies their scales to the sums.
    mask = is_input & is_output
    if BITS == 4:
        byte = tl.load(values_ptr + row * ((inputs + 1) // 2) + at // 2, mask=mask, other=0)
        integer = ((byte.to(tl.int32) >> (at % 2 * 4)) & 15) - 8
        place = row * groups + start // group
        if zeros_ptr is not None:
            integer -= tl.load(zeros_ptr + place, mask=is_output, other=0).to(tl.int32)
        scale = tl.load(scales_ptr + place, mask=is_output, other=0.0)
        weight = tl.where(is_input, integer.to(tl.float32) * scale, 0.0).to(DOT)
    else:
        weight = tl.load(values_ptr + row * inputs + at, mask=mask, other=0).to(DOT)
    return weight


@triton.jit
def finished(sums, scales_ptr, bias_ptr, row, mask, BITS: tl.constexpr):
    # Sums [ROWS, OUTPUTS], of integers of 8 bits times the scales of their outputs, plus biases.
    if BITS == 8:
        sums *= tl.load(scales_ptr + row, mask=mask, other=0.0)
    if bias_ptr is not None:
        sums += tl.load(bias_ptr + row, mask=mask, other=0.0).to(tl.float32)
    return sums


INPUTS_OF_INT4 = 32
"""Inputs of a tile: of one group, so that a tile needs one scale for each output."""


def tile_arguments(
    weight: Tensor | IntegerWeight,
) -> tuple[tuple[Tensor, Tensor | None, Tensor | None], tuple[int, int, int]]:
    """Return values, scales and zero points of a weight, then groups, group and bits."""
    if isinstance(weight, Tensor):
        return (weight, None, None), (1, 1, 0)
    parts = (weight.values, weight.scales, weight.zeros)
    return parts, (weight.scales.shape[-1], weight.group, weight.bits)
