"""Blocks of weights, as kernels in C read them."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from specdecode_kernels.weights import (
    STORED,
    NumberFormat,
    Precision,
    QuantizedTensor,
    ScaleFormat,
    float4_numbers,
    in_original_order,
)

BLOCK, CHUNK = 64, 8
"""Outputs whose weights lie side by side, and inputs that are filled up; as in cpu/formats.h."""
SumOrder = Literal["inputs", "blocks32"]
"""In which order C adds products of rows of bfloat16; defined in cpu/tile.c."""
SUM_ORDERS: tuple[SumOrder, ...] = ("inputs", "blocks32")
"""In the order of cpu/formats.h."""
SUM_BLOCK = 32
"""Inputs of a block of blocks32."""
SHIFT_OF_FLOAT8 = 2.0**8
"""By which kernels in C divide float8, and multiply its scales; see cpu/formats.h."""
SHIFT_OF_FACTORS = 2.0**7
"""By which kernels in C multiply factors of float4."""

FORMATS: tuple[NumberFormat | None, ...] = (
    *(None, None, "int8", "int4", "float8_e4m3fn", "float4_e2m1fn"),
)
"""Of blocks, in the order of cpu/formats.h; the first two are float32 and bfloat16."""
SCALES = (torch.bfloat16, torch.float32, torch.float8_e8m0fnu, torch.float8_e4m3fn)
"""Of groups, in the order of cpu/formats.h."""
_SCALE_FORMATS: tuple[ScaleFormat, ...] = (
    *("float32", "float32", "float8_e8m0fnu", "float8_e4m3fn"),
)


class PackedLayout(NamedTuple):
    """How blocks are stored: `struct layout` of cpu/formats.h."""

    format: int  # of `FORMATS`
    group: int = 0  # inputs that share a scale; 0: all
    scales: int = 0  # of groups: of `SCALES`
    has_zeros: bool = False
    sums: int = 0  # of `SUM_ORDERS`

    @property
    def numbers(self) -> NumberFormat | None:
        """The format of a quantized weight; None where it has the type of the rows."""
        return FORMATS[self.format]

    @property
    def has_output_scales(self) -> bool:
        """Whether each output has a scale or factor, in float32 after the weights of a block."""
        if not self.group:
            return self.numbers is not None
        return SCALES[self.scales] == torch.float8_e4m3fn

    def padded(self, inputs: int) -> int:
        unit = max(self.group or CHUNK, SUM_BLOCK if self.sums else 1)
        return -(-inputs // unit) * unit

    @property
    def header_bytes(self) -> int:
        """Bytes of the scales and zero points of a group."""
        if not self.group:
            return 0
        return BLOCK * (SCALES[self.scales].itemsize + self.has_zeros)

    def block_bytes(self, inputs: int) -> int:
        """Return the bytes of a block of outputs."""
        wide = self.padded(inputs)
        scale_bytes = 4 * BLOCK if self.has_output_scales else 0
        if self.group:
            return wide // self.group * self.group_bytes + scale_bytes
        return wide * BLOCK * self._bits // 8 + BLOCK * self.has_zeros + scale_bytes

    @property
    def group_bytes(self) -> int:
        """Bytes of a group, with its scales and zero points."""
        return self.header_bytes + self.group * BLOCK * self._bits // 8

    @property
    def _bits(self) -> int:
        return (32, 16, 8, 4, 8, 4)[self.format]


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight in blocks of outputs, as kernels in C read it.

    Those of several experts lie one after the other: `shape` begins with their number.
    """

    blocks: Tensor  # [..., blocks, numbers] of the rows' type; quantized u8 [..., blocks, bytes]
    shape: torch.Size  # [..., outputs, inputs]
    dtype: torch.dtype  # of the rows that it maps
    layout: PackedLayout
    in_c: object  # `struct weight` of cpu/linear.h
    address: int  # of that
    order: Tensor | None = None  # as of a `QuantizedTensor`

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks, including what fills them up."""
        return self.blocks.nbytes

    @property
    def precision(self) -> Precision | None:
        """None where the weights have the type of the rows."""
        of = self.layout
        if of.numbers is None:
            return None
        return Precision(of.numbers, of.group, bool(of.has_zeros), _SCALE_FORMATS[of.scales])

    def plain(self) -> Tensor:
        """Copy the weights to an ordinary tensor of `shape`: of the rows' type, or float32."""
        return self._by_output(self.blocks)[..., : self.shape[-2], :].contiguous()

    def rows(self, start: int, stop: int) -> Tensor:
        """Copy some outputs of one map [outputs, inputs] to an ordinary tensor, as `plain`."""
        first, last = start // BLOCK, -(-stop // BLOCK)
        shift = first * BLOCK
        return self._by_output(self.blocks[first:last])[start - shift : stop - shift]

    def _by_output(self, blocks: Tensor) -> Tensor:
        unpacked = _unpacked(blocks.view(torch.uint8), self.layout)
        plain = unpacked.movedim(-1, -2).flatten(-3, -2)[..., : self.shape[-1]]
        return plain if self.order is None else in_original_order(plain, self.order)


def _unpacked(blocks: Tensor, layout: PackedLayout) -> Tensor:
    """Return the weights of blocks as [..., blocks, inputs, BLOCK]."""
    leading = blocks.shape[:-1]
    if layout.format == 0:
        return blocks.view(torch.float32).view(*leading, -1, BLOCK)
    if layout.format == 1:
        pairs = blocks.view(torch.bfloat16).view(*leading, -1, BLOCK, 2)
        return pairs.flip(-1).movedim(-1, -2).flatten(-3, -2)
    of_outputs = None
    if layout.has_output_scales:
        blocks, scales = blocks[..., : -4 * BLOCK], blocks[..., -4 * BLOCK :]
        of_outputs = scales.contiguous().view(torch.float32)
    if not layout.group:
        assert of_outputs is not None
        zeros = None
        if layout.has_zeros:
            blocks, stored = blocks[..., :-BLOCK], blocks[..., -BLOCK:]
            zeros = stored.contiguous().view(torch.int8)
        return _scaled(blocks, of_outputs, layout, zeros)
    groups = blocks.reshape(*leading, -1, layout.group_bytes)
    return _unpacked_groups(groups, of_outputs, layout).flatten(-3, -2)


def _unpacked_groups(groups: Tensor, factors: Tensor | None, layout: PackedLayout) -> Tensor:
    """Return the weights of groups [..., groups, bytes] as [..., groups, group, BLOCK]."""
    header, values = groups.tensor_split([layout.header_bytes], dim=-1)
    stored = SCALES[layout.scales]
    scales = header[..., : stored.itemsize * BLOCK].contiguous().view(stored).float()
    if factors is not None:
        scales = scales * (factors / SHIFT_OF_FACTORS).unsqueeze(-2)
    zeros = header[..., -BLOCK:].contiguous().view(torch.int8) if layout.has_zeros else None
    return _scaled(values, scales, layout, zeros)


def _scaled(
    values: Tensor, scales: Tensor, layout: PackedLayout, zeros: Tensor | None = None
) -> Tensor:
    """Return weights [..., inputs, BLOCK] of bytes, with scales and zero points [..., BLOCK]."""
    numbers = _numbers(values.contiguous(), layout)
    if zeros is not None:
        numbers = numbers - zeros.unsqueeze(-2)
    if layout.numbers == "float8_e4m3fn":
        scales = scales / SHIFT_OF_FLOAT8
    return numbers * scales.unsqueeze(-2)


def _numbers(values: Tensor, layout: PackedLayout) -> Tensor:
    if layout.numbers in ("int4", "float4_e2m1fn"):
        words = values.view(torch.int32).view(*values.shape[:-1], -1, 1, BLOCK)
        places = torch.arange(0, 32, 4, dtype=torch.int32)[:, None]
        integers = (words << (28 - places) >> 28).flatten(-3, -2)
        return integers.float() if layout.numbers == "int4" else float4_numbers(integers & 15)
    assert layout.numbers is not None
    return values.view(STORED[layout.numbers]).view(*values.shape[:-1], -1, BLOCK).float()


AnyWeight = Tensor | QuantizedTensor | PackedWeight
"""A weight in any of its forms."""
