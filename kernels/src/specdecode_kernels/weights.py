"""Quantized weights: numbers of few bits next to their scales."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

INT4_OFFSET = 8
"""What is added to integers of 4 bits where they are stored."""
GROUPS = (32, 64, 128)
"""Inputs that may share a scale, of integers of 4 bits and of float8."""
FLOAT4_NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of float4 (e2m1fn) by their lower three bits; the fourth bit is the sign.

Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3.
"""

NumberFormat = Literal["int8", "int4", "float8_e4m3fn", "float4_e2m1fn"]
"""What a quantized weight consists of, next to its scales."""
STORED: Mapping[NumberFormat, torch.dtype] = {
    "int8": torch.int8,
    "int4": torch.uint8,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float4_e2m1fn": torch.float4_e2m1fn_x2,
}
ScaleFormat = Literal["float32", "float8_e8m0fnu", "float8_e4m3fn"]
SCALES: Mapping[ScaleFormat, torch.dtype] = {
    "float32": torch.float32,
    "float8_e8m0fnu": torch.float8_e8m0fnu,
    "float8_e4m3fn": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class Precision:
    """The format of a weight, the inputs that share a scale (0: all of them), any zero points.

    Scales in float8_e4m3fn have a factor for each output besides.
    """

    format: NumberFormat
    group: int = 0
    has_zeros: bool = False
    scales: ScaleFormat = "float32"

    @property
    def bits(self) -> int:
        return 4 if is_halved(self.format) else 8

    @property
    def scale_bytes(self) -> int:
        return SCALES[self.scales].itemsize

    @property
    def has_factors(self) -> bool:
        """Whether each output has a factor besides its scales."""
        return self.scales == "float8_e4m3fn"


def is_halved(number: NumberFormat) -> bool:
    """Whether a byte holds two numbers."""
    return number in ("int4", "float4_e2m1fn")


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedTensor:
    """A weight [..., outputs, inputs] of integers or floats of 8 or 4 bits.

    w[o, i] = factors[o] * scales[o, g] * (values[o, i] - zeros[o, g]) with g = i // group. Integers
    alone have zero points. Values are never NaN. With an order, values are those of the inputs in
    this order: i above is w[o, order[i]].
    """

    values: Tensor
    """i8 or float8_e4m3fn [..., outputs, inputs]; of 4 bits [..., outputs, (inputs + 1) // 2], the
    first of two numbers in the lower bits: integers as u8 with 8 added, or float4_e2m1fn_x2."""

    scales: Tensor
    """[..., outputs, groups] in one of `SCALES`; of one byte only next to floats of 4 bits."""
    shape: torch.Size
    dtype: torch.dtype  # of the rows that it maps
    group: int  # inputs
    zeros: Tensor | None = None  # i8 [..., outputs, groups]
    factors: Tensor | None = None  # [..., outputs] f32, next to scales in float8_e4m3fn
    order: Tensor | None = None  # [inputs] i32, each input once

    def __post_init__(self) -> None:
        *leading, outputs, inputs = self.shape
        width = -(-inputs // 2) if is_halved(self.format) else inputs
        groups = -(-inputs // self.group)
        wanted = (*leading, outputs, width), (*leading, outputs, groups)
        found = tuple(self.values.shape), tuple(self.scales.shape)
        if found != wanted:
            raise ValueError(
                f"values and scales of a weight {list(self.shape)} in groups of {self.group} are "
                f"{found}; they must be {wanted}"
            )
        if self.values.dtype.is_floating_point and self.zeros is not None:
            raise ValueError(f"{self.format} must have no zero points")
        has_factors = None if self.factors is None else tuple(self.factors.shape)
        if has_factors != ((*leading, outputs) if self.precision.has_factors else None):
            raise ValueError(
                f"factors of a weight {list(self.shape)} with scales in {self.scales.dtype} are "
                f"{has_factors}; each output has one if scales are in float8_e4m3fn"
            )
        if self.order is not None and tuple(self.order.shape) != (inputs,):
            raise ValueError(
                f"the order of the inputs of a weight {list(self.shape)} is "
                f"{list(self.order.shape)}; it must have {inputs}"
            )

    @classmethod
    def empty(
        cls, shape: torch.Size, precision: Precision, dtype: torch.dtype, device: torch.device
    ) -> "QuantizedTensor":
        """Make a weight whose numbers are still to be written."""
        *leading, inputs = shape
        group = precision.group or inputs
        width = -(-inputs // 2) if is_halved(precision.format) else inputs
        values = torch.empty(*leading, width, dtype=STORED[precision.format], device=device)
        stored = SCALES[precision.scales]
        scales = torch.empty(*leading, -(-inputs // group), dtype=stored, device=device)
        zeros = torch.empty_like(scales, dtype=torch.int8) if precision.has_zeros else None
        factors = torch.empty(*leading, device=device) if precision.has_factors else None
        return cls(values, scales, shape, dtype, group, zeros, factors)

    @property
    def format(self) -> NumberFormat:
        return next(name for name, stored in STORED.items() if stored == self.values.dtype)

    @property
    def precision(self) -> Precision:
        scales = next(name for name, stored in SCALES.items() if stored == self.scales.dtype)
        is_grouped = is_halved(self.format) or self.scales.shape[-1] > 1
        group = self.group if is_grouped else 0
        return Precision(self.format, group, self.zeros is not None, scales)

    def numbers(self) -> Tensor:
        """Return what scales multiply [..., outputs, inputs]: i8, float8_e4m3fn, or f32 of
        float4.
        """
        if not is_halved(self.format):
            return self.values
        stored = self.values.view(torch.uint8)
        codes = torch.stack([stored & 15, stored >> 4], dim=-1).flatten(-2)[..., : self.shape[-1]]
        if self.format == "int4":
            return codes.to(torch.int8) - INT4_OFFSET
        return float4_numbers(codes)

    def wide_scales(self) -> Tensor:
        """Return scales times factors in float32 [..., outputs, groups]."""
        scales = self.scales.float()
        return scales if self.factors is None else scales * self.factors.unsqueeze(-1)

    def plain(self) -> Tensor:
        """Return the weight as an ordinary tensor, in float32 (float64 for such rows)."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        numbers = self.numbers().to(wide)
        groups = torch.arange(self.shape[-1], device=numbers.device) // self.group
        if self.zeros is not None:
            numbers = numbers - self.zeros.index_select(-1, groups)
        plain = numbers * self.wide_scales().index_select(-1, groups)
        return plain if self.order is None else in_original_order(plain, self.order)

    def ordered(self, x: Tensor) -> Tensor:
        """Return rows [rows, inputs] in the order in which values are stored."""
        return x if self.order is None else x.index_select(1, self.order)

    def rows(self, start: int, stop: int) -> Tensor:
        """Return some outputs of one map [outputs, inputs] as an ordinary tensor, as `plain`."""
        part = slice(start, stop)
        zeros = None if self.zeros is None else self.zeros[part]
        factors = None if self.factors is None else self.factors[part]
        values, scales = self.values[part], self.scales[part]
        shape = torch.Size((len(values), self.shape[1]))
        return QuantizedTensor(
            values, scales, shape, self.dtype, self.group, zeros, factors, self.order
        ).plain()

    def on(self, device: torch.device) -> "QuantizedTensor":
        """Return a copy on a device, or the weight itself if it is there."""
        zeros = None if self.zeros is None else self.zeros.to(device)
        factors = None if self.factors is None else self.factors.to(device)
        order = None if self.order is None else self.order.to(device)
        values, scales = self.values.to(device), self.scales.to(device)
        return replace(
            self, values=values, scales=scales, zeros=zeros, factors=factors, order=order
        )


def in_original_order(ordered: Tensor, order: Tensor) -> Tensor:
    """Return weights [..., inputs] whose inputs are stored in an order [inputs] as they were."""
    return ordered.index_select(-1, torch.argsort(order))


def float4_numbers(codes: Tensor) -> Tensor:
    """Return the numbers of float4 with codes from 0 to 15 in float32."""
    magnitudes = torch.tensor(FLOAT4_NUMBERS, device=codes.device)
    return torch.cat([magnitudes, -magnitudes])[codes.int()]


def pack_int4(integers: Tensor) -> Tensor:
    """Store integers [..., inputs] from -8 to 7 as the `values` of a `QuantizedTensor`."""
    stored = (integers + INT4_OFFSET).to(torch.uint8)
    if stored.shape[-1] % 2:
        stored = torch.nn.functional.pad(stored, (0, 1), value=INT4_OFFSET)
    return stored[..., ::2] | stored[..., 1::2] << 4
