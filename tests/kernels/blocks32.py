"""The order of sums blocks32, computed by numpy from its definition in cpu/tile.c.

Shares no code with the kernels: floats of 64 bits hold every product exactly, and every sum is
rounded to odd first, so that its second rounding, to 24 bits, is that of the exact sum.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from specdecode_kernels import QuantizedTensor

Doubles = npt.NDArray[np.float64]
BLOCK = 32
SMALLEST_NORMAL = 2.0**-126


def emulate_linear(x: Tensor, weight: Tensor | QuantizedTensor, bias: Tensor | None) -> Tensor:
    """Map rows of bfloat16 [rows, inputs] to [rows, outputs], as `Backend.linear`."""
    with np.errstate(all="ignore"):
        sums = _sums(x, weight)
        if bias is not None:
            sums = _as_float(sums + bias.double().numpy())
    return torch.from_numpy(sums).float().bfloat16()


def _sums(x: Tensor, weight: Tensor | QuantizedTensor) -> Doubles:
    rows = x.double().numpy()
    if isinstance(weight, Tensor):
        return _sum_of_blocks(rows, weight.double().numpy())
    if weight.order is not None:
        rows = rows[:, weight.order.numpy()]
    numbers, scales, outputs = _factors_and_scales(weight)
    if scales is None:
        return _as_float(_sum_of_blocks(rows, numbers) * outputs)
    total = np.zeros((len(rows), len(numbers)))
    for group in range(scales.shape[1]):
        part = slice(group * weight.group, (group + 1) * weight.group)
        padding = weight.group - numbers[:, part].shape[1]
        of_group = np.pad(numbers[:, part], ((0, 0), (0, padding)), constant_values=0.0)
        if padding and weight.zeros is not None:
            of_group[:, -padding:] = -weight.zeros.double().numpy()[:, group : group + 1]
        rows_of_group = np.pad(rows[:, part], ((0, 0), (0, padding)))
        total = _rounded(_sum_of_blocks(rows_of_group, of_group) * scales[:, group], total)
    return total


def _factors_and_scales(
    weight: QuantizedTensor,
) -> tuple[Doubles, Doubles | None, Doubles | float]:
    """Return factors [outputs, inputs], scales of groups, and those of outputs."""
    numbers, scales = weight.numbers().double().numpy(), weight.scales.double().numpy()
    if weight.format == "float8_e4m3fn":
        numbers, scales = numbers / 2**8, _as_float(scales * 2**8)
    elif weight.format == "float4_e2m1fn":
        numbers = numbers * 2
        if weight.factors is not None:
            of_inputs = np.repeat(scales / 2**8, weight.group, axis=1)[:, : numbers.shape[1]]
            factors = _as_float(weight.factors.double().numpy() * 2**7)
            return numbers * of_inputs, None, factors
        scales = scales / 2
    if weight.zeros is not None:
        zeros = np.repeat(weight.zeros.double().numpy(), weight.group, axis=1)
        numbers = numbers - zeros[:, : numbers.shape[1]]
    if not weight.precision.group:
        return numbers, None, scales[:, 0]
    return numbers, scales, 1.0


def _sum_of_blocks(x: Doubles, weight: Doubles) -> Doubles:
    """Sum [rows, outputs] over blocks of 32 inputs, from +0 on."""
    padding = ((0, 0), (0, -x.shape[1] % BLOCK))
    x, weight = np.pad(_flushed(x), padding), np.pad(_flushed(weight), padding)
    rows, outputs = x.reshape(len(x), 1, -1, 16, 2), weight.reshape(1, len(weight), -1, 16, 2)
    chains = np.zeros((len(x), len(weight), rows.shape[2], 2))
    for pair in range(16):
        products = rows[..., pair, :] * outputs[..., pair, :]
        chains = _rounded(products, chains, flushes=True)
    blocks = _rounded(chains[..., 0], chains[..., 1], flushes=True)
    total = np.zeros(blocks.shape[:2])
    for block in range(blocks.shape[2]):
        total = _rounded(total, blocks[..., block], flushes=True)
    return total


def _rounded(a: Doubles, b: Doubles, *, flushes: bool = False) -> Doubles:
    """Return a + b, both exact, as the nearest float of 32 bits."""
    total = np.asarray(a + b)
    part = total - a
    error = (a - (total - part)) + (b - part)
    bits = total.view(np.int64)
    is_even = (bits & 1 == 0) & np.isfinite(total) & (error != 0)
    away = np.where((error > 0) == (total > 0), 1, -1)
    odd = np.where(is_even, bits + away, bits).view(np.float64)
    if not flushes:
        return _as_float(odd)
    is_small = np.abs(odd) < 2.0**-100  # rounded to 24 bits, however small, by another exponent
    is_tiny = np.abs(_as_float(np.where(is_small, odd, 0) * 2.0**100)) < SMALLEST_NORMAL * 2.0**100
    return np.where(is_small & is_tiny, np.copysign(0.0, odd), _as_float(odd))


def _flushed(x: Doubles) -> Doubles:
    return np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(0.0, x), x)


def _as_float(x: Any) -> Doubles:
    return np.asarray(x).astype(np.float32).astype(np.float64)
