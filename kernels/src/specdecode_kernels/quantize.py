"""Quantizes weights to integers or floats of 8 or 4 bits; activations are not quantized."""

import torch
from torch import Tensor

from specdecode_kernels.weights import (
    FLOAT4_NUMBERS,
    INT4_OFFSET,
    Precision,
    QuantizedTensor,
    pack_int4,
)

INT8_LIMIT, INT4_LIMIT, FLOAT8_LIMIT, FLOAT4_LIMIT = 127, 7, 448, 6
E8M0_BIAS = 127
SHARES = (1.0, 8 / 7)
"""Of the scale at which the integer of the largest weight is -8; with the second it is -7, and the
integers reach as far on either side."""
CHUNK_ELEMENTS = 1 << 18
"""Weights that are rounded at a time, so that loading needs little memory besides the model's."""


INT8 = Precision("int8")
INT4 = Precision("int4", 32)
MXFP4 = Precision("float4_e2m1fn", 32, scales="float8_e8m0fnu")
"""Source: OCP Microscaling Formats (MX) 1.0."""
NVFP4 = Precision("float4_e2m1fn", 16, scales="float8_e4m3fn")
"""Source: compressed-tensors and nvidia-modelopt, see model/checkpoint/quantized of the engine."""


def quantize(weight: Tensor, precision: Precision) -> QuantizedTensor:
    """Quantize a weight [..., outputs, inputs] to the nearest multiples of scales.

    Integers of 8 bits: scale = max |w| / 127 of a group or output. Of 4 bits: the scale of a group
    is rounded to bfloat16, and is the one of a few with the least sum of squared errors. Float8:
    scale = max |w| / 448 of a group or output. Float4: a power of two next to max |w| / 6 of a
    group, so that nothing is cut off; or max |w| / 6 of a group, less the factor max |w| / 2688 of
    its output, in float8_e4m3fn.

    Raises:
        ValueError: the weight contains NaN or infinity.
    """
    *leading, inputs = weight.shape
    rows = weight.reshape(-1, inputs)
    step = max(1, len(rows) if rows.is_meta else CHUNK_ELEMENTS // max(inputs, 1))
    parts = [_quantize_rows(rows[at : at + step], precision) for at in range(0, len(rows), step)]
    values, scales, *factors = (torch.cat(one) for one in zip(*parts, strict=True))
    return QuantizedTensor(
        values.view(*leading, -1),
        scales.view(*leading, -1),
        weight.shape,
        weight.dtype,
        precision.group or inputs,
        factors=factors[0].view(leading) if factors else None,
    )


def _quantize_rows(rows: Tensor, precision: Precision) -> tuple[Tensor, ...]:
    """Return values and scales, and factors if the precision has them."""
    wide = rows.float()
    if not rows.is_meta and not bool(torch.isfinite(wide).all()):
        raise ValueError(
            f"a weight of {list(rows.shape)} contains NaN or infinity and cannot be quantized"
        )
    if precision.format == "int8":
        return _to_int8(wide, precision.group or rows.shape[1])
    if precision.format == "int4":
        return _to_int4(wide, precision.group)
    if precision.format == "float4_e2m1fn":
        return _to_float4(wide, precision)
    return _to_float8(wide, precision.group or rows.shape[1])


def _to_int8(rows: Tensor, group: int) -> tuple[Tensor, Tensor]:
    grouped = _grouped(rows, group)
    scales = grouped.abs().amax(dim=-1, keepdim=True) / INT8_LIMIT
    integers = _rounded(grouped, scales, -INT8_LIMIT, INT8_LIMIT).to(torch.int8).flatten(1)
    return integers[:, : rows.shape[1]], scales.squeeze(-1)


def _to_int4(rows: Tensor, group: int) -> tuple[Tensor, Tensor]:
    grouped = _grouped(rows, group)
    scales = _best_scales(grouped)
    integers = _rounded(grouped, scales, -INT4_OFFSET, INT4_LIMIT).flatten(1)
    return pack_int4(integers[:, : rows.shape[1]]), scales.squeeze(-1)


def _to_float8(rows: Tensor, group: int) -> tuple[Tensor, Tensor]:
    grouped = _grouped(rows, group)
    scales = grouped.abs().amax(dim=-1, keepdim=True) / FLOAT8_LIMIT
    scaled = grouped / torch.where(scales == 0, 1.0, scales)
    values = scaled.clamp(-FLOAT8_LIMIT, FLOAT8_LIMIT).to(torch.float8_e4m3fn).flatten(1)
    return values[:, : rows.shape[1]], scales.squeeze(-1)


def _to_float4(rows: Tensor, precision: Precision) -> tuple[Tensor, ...]:
    grouped = _grouped(rows, precision.group)
    largest = grouped.abs().amax(dim=-1)
    if not precision.has_factors:
        mantissas, exponents = torch.frexp(largest / FLOAT4_LIMIT)
        powers = torch.where(mantissas == 0.5, exponents - 1, exponents)  # the next power of two
        scales = (powers.clamp(-E8M0_BIAS, E8M0_BIAS) + E8M0_BIAS).to(torch.uint8)
        stored = (scales.view(torch.float8_e8m0fnu),)
        return _float4_codes(rows, grouped, stored[0].float()), *stored
    factors = largest.amax(dim=-1) / (FLOAT4_LIMIT * FLOAT8_LIMIT)
    whole = torch.where(factors == 0, 1.0, factors).unsqueeze(-1)
    in_float8 = (largest / FLOAT4_LIMIT / whole).clamp(max=FLOAT8_LIMIT).to(torch.float8_e4m3fn)
    return _float4_codes(rows, grouped, in_float8.float() * whole), in_float8, factors


def _float4_codes(rows: Tensor, grouped: Tensor, scales: Tensor) -> Tensor:
    """Round to the nearest numbers of float4, ties to even, two in a byte."""
    scaled = (grouped / torch.where(scales == 0, 1.0, scales).unsqueeze(-1)).flatten(1)
    scaled = scaled[:, : rows.shape[1]]
    size = scaled.abs().unsqueeze(-1)
    numbers = torch.tensor(FLOAT4_NUMBERS, device=rows.device)
    middles = (numbers[1:] + numbers[:-1]) / 2
    codes = ((size > middles[::2]).sum(-1) + (size >= middles[1::2]).sum(-1)).to(torch.uint8)
    codes |= torch.signbit(scaled).to(torch.uint8) << 3
    if codes.shape[1] % 2:
        codes = torch.nn.functional.pad(codes, (0, 1))
    return (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.float4_e2m1fn_x2)


def _grouped(rows: Tensor, group: int) -> Tensor:
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % group))
    return padded.view(len(rows), -1, group)


def _best_scales(grouped: Tensor) -> Tensor:
    """Return the scale of each group [rows, groups, 1], a number of bfloat16 (maybe negative)."""
    largest = grouped.gather(-1, grouped.abs().argmax(dim=-1, keepdim=True))
    best = least = torch.zeros(0)
    for share in SHARES:
        scales = (largest * share / -INT4_OFFSET).bfloat16().float()
        errors = _rounded(grouped, scales, -INT4_OFFSET, INT4_LIMIT) * scales - grouped
        squares = errors.double().square().sum(dim=-1, keepdim=True)
        if not len(best):
            best, least = scales, squares
        else:
            best = torch.where(squares < least, scales, best)
            least = torch.minimum(squares, least)
    return best


def _rounded(values: Tensor, scales: Tensor, least: int, most: int) -> Tensor:
    inverse = torch.where(scales == 0, 0.0, 1 / scales)
    return (values * inverse).round().clamp(least, most)
