"""Quantizes weights to integers of 8 or 4 bits, or float8; activations are not quantized."""

import torch
from torch import Tensor

from specdecode_kernels.weights import INT4_OFFSET, Precision, QuantizedTensor, pack_int4

INT8_LIMIT, INT4_LIMIT, FLOAT8_LIMIT = 127, 7, 448
SHARES = (1.0, 8 / 7)
"""Of the scale at which the integer of the largest weight is -8; with the second it is -7, and the
integers reach as far on either side."""
CHUNK_ELEMENTS = 1 << 18
"""Weights that are rounded at a time, so that loading needs little memory besides the model's."""


INT8 = Precision("int8")
INT4 = Precision("int4", 32)


def quantize(weight: Tensor, precision: Precision) -> QuantizedTensor:
    """Quantize a weight [..., outputs, inputs] to the nearest multiples of scales.

    Integers of 8 bits: scale = max |w| / 127 of an output. Of 4 bits: the scale of a group is
    rounded to bfloat16, and is the one of a few with the least sum of squared errors. Float8:
    scale = max |w| / 448 of a group or output.

    Raises:
        ValueError: the weight contains NaN or infinity.
    """
    *leading, inputs = weight.shape
    rows = weight.reshape(-1, inputs)
    step = max(1, len(rows) if rows.is_meta else CHUNK_ELEMENTS // max(inputs, 1))
    parts = [_quantize_rows(rows[at : at + step], precision) for at in range(0, len(rows), step)]
    values, scales = (torch.cat(one).view(*leading, -1) for one in zip(*parts, strict=True))
    group = precision.group or inputs
    return QuantizedTensor(values, scales, weight.shape, weight.dtype, group)


def _quantize_rows(rows: Tensor, precision: Precision) -> tuple[Tensor, Tensor]:
    wide = rows.float()
    if not rows.is_meta and not bool(torch.isfinite(wide).all()):
        raise ValueError(
            f"a weight of {list(rows.shape)} contains NaN or infinity and cannot be quantized"
        )
    if precision.format == "int8":
        return _to_int8(wide)
    if precision.format == "int4":
        return _to_int4(wide, precision.group)
    return _to_float8(wide, precision.group or rows.shape[1])


def _to_int8(rows: Tensor) -> tuple[Tensor, Tensor]:
    scales = rows.abs().amax(dim=-1, keepdim=True) / INT8_LIMIT
    return _rounded(rows, scales, -INT8_LIMIT, INT8_LIMIT).to(torch.int8), scales


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
