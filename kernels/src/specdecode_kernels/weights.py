"""Forms of weights besides tensors: integers with scales, and blocks as kernels in C read them."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

INT4_OFFSET = 8
"""What is added to integers of 4 bits where they are stored."""
INT4_GROUPS = (32, 64, 128)
"""Inputs that may share a scale; a scale for every output is as one for every 128 of its inputs."""
BLOCK, CHUNK = 64, 8
"""Outputs whose weights lie side by side, and inputs that are filled up; as in cpu/formats.h."""


@dataclass(frozen=True, slots=True)
class Precision:
    """Bits of integers, the inputs that share a scale (0: all of them), and any zero points."""

    bits: int
    group: int = 0
    has_zeros: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class IntegerWeight:
    """A weight [..., outputs, inputs] of integers of 8 or 4 bits.

    w[o, i] = scales[o, i // group] * (values[o, i] - zeros[o, i // group]). Integers of 8 bits have
    one group, and no zero points.
    """

    values: Tensor
    """i8 [..., outputs, inputs]; of 4 bits u8 [..., outputs, (inputs + 1) // 2]: 8 is added, the
    first of two integers is in the lower bits."""

    scales: Tensor  # [..., outputs, groups] f32
    shape: torch.Size
    dtype: torch.dtype  # of the rows that it maps
    group: int  # inputs
    zeros: Tensor | None = None  # i8 [..., outputs, groups]

    def __post_init__(self) -> None:
        *leading, outputs, inputs = self.shape
        width = inputs if self.bits == 8 else -(-inputs // 2)
        groups = -(-inputs // self.group)
        wanted = (*leading, outputs, width), (*leading, outputs, groups)
        found = tuple(self.values.shape), tuple(self.scales.shape)
        if found != wanted:
            raise ValueError(
                f"values and scales of a weight {list(self.shape)} in groups of {self.group} are "
                f"{found}; they must be {wanted}"
            )
        if self.bits == 8 and (groups != 1 or self.zeros is not None):
            raise ValueError("integers of 8 bits must have one scale for each output, and no more")

    @classmethod
    def empty(
        cls, shape: torch.Size, precision: Precision, dtype: torch.dtype, device: torch.device
    ) -> "IntegerWeight":
        """Make a weight whose numbers are still to be written."""
        *leading, inputs = shape
        group = precision.group or inputs
        width, stored = inputs, torch.int8
        if precision.bits == 4:
            width, stored = -(-inputs // 2), torch.uint8
        values = torch.empty(*leading, width, dtype=stored, device=device)
        scales = torch.empty(*leading, -(-inputs // group), device=device)
        zeros = torch.empty_like(scales, dtype=torch.int8) if precision.has_zeros else None
        return cls(values, scales, shape, dtype, group, zeros)

    @property
    def bits(self) -> int:
        return 8 if self.values.dtype == torch.int8 else 4

    @property
    def precision(self) -> Precision:
        if self.bits == 8:
            return Precision(8)
        return Precision(4, self.group, has_zeros=self.zeros is not None)

    def integers(self) -> Tensor:
        """Return the integers as i8 [..., outputs, inputs]."""
        if self.bits == 8:
            return self.values
        halves = torch.stack([self.values & 15, self.values >> 4], dim=-1).flatten(-2)
        return halves[..., : self.shape[-1]].to(torch.int8) - INT4_OFFSET

    def plain(self) -> Tensor:
        """Return the weight as an ordinary tensor, in float32 (float64 for such rows)."""
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        integers = self.integers().to(wide)
        groups = torch.arange(self.shape[-1], device=integers.device) // self.group
        if self.zeros is not None:
            integers = integers - self.zeros.index_select(-1, groups)
        return integers * self.scales.index_select(-1, groups)

    def rows(self, start: int, stop: int) -> Tensor:
        """Return some outputs of one map [outputs, inputs] as an ordinary tensor, as `plain`."""
        zeros = None if self.zeros is None else self.zeros[start:stop]
        values, scales = self.values[start:stop], self.scales[start:stop]
        shape = torch.Size((len(values), self.shape[1]))
        return IntegerWeight(values, scales, shape, self.dtype, self.group, zeros).plain()


def pack_int4(integers: Tensor) -> Tensor:
    """Store integers [..., inputs] from -8 to 7 as the `values` of an `IntegerWeight`."""
    stored = (integers + INT4_OFFSET).to(torch.uint8)
    if stored.shape[-1] % 2:
        stored = torch.nn.functional.pad(stored, (0, 1), value=INT4_OFFSET)
    return stored[..., ::2] | stored[..., 1::2] << 4


class PackedLayout(NamedTuple):
    """How blocks are stored: `struct layout` of cpu/formats.h."""

    format: int  # 0 float32, 1 bfloat16, 2 integers of 8 bits, 3 of 4 bits
    group: int = 0  # inputs that share a scale, of integers of 4 bits
    has_wide_scales: bool = False  # of groups: float32 instead of bfloat16
    has_zeros: bool = False

    def padded(self, inputs: int) -> int:
        unit = self.group or CHUNK
        return -(-inputs // unit) * unit

    @property
    def header_bytes(self) -> int:
        """Bytes of the scales and zero points of a group."""
        if not self.group:
            return 0
        return BLOCK * ((4 if self.has_wide_scales else 2) + self.has_zeros)

    def block_bytes(self, inputs: int) -> int:
        """Return the bytes of a block of outputs."""
        wide = self.padded(inputs)
        if self.group:
            return wide // self.group * (self.header_bytes + self.group * BLOCK // 2)
        return wide * BLOCK * (4, 2, 1)[self.format] + (4 * BLOCK if self.format == 2 else 0)


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight in blocks of outputs, as kernels in C read it.

    Those of several experts lie one after the other: `shape` begins with their number.
    """

    blocks: Tensor  # [..., blocks, numbers] of the rows' type; of integers u8 [..., blocks, bytes]
    shape: torch.Size  # [..., outputs, inputs]
    dtype: torch.dtype  # of the rows that it maps
    layout: PackedLayout
    in_c: object  # `struct weight` of cpu/linear.h
    address: int  # of that

    @property
    def num_bytes(self) -> int:
        """Bytes of the blocks, including what fills them up."""
        return self.blocks.nbytes

    @property
    def precision(self) -> Precision | None:
        """That of integers; None where the weights have the type of the rows."""
        of = self.layout
        return (None, None, Precision(8), Precision(4, of.group, of.has_zeros))[of.format]

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
        return unpacked.movedim(-1, -2).flatten(-3, -2)[..., : self.shape[-1]]


def _unpacked(blocks: Tensor, layout: PackedLayout) -> Tensor:
    """Return the weights of blocks as [..., blocks, inputs, BLOCK]."""
    leading = blocks.shape[:-1]
    if layout.format == 0:
        return blocks.view(torch.float32).view(*leading, -1, BLOCK)
    if layout.format == 1:
        pairs = blocks.view(torch.bfloat16).view(*leading, -1, BLOCK, 2)
        return pairs.flip(-1).movedim(-1, -2).flatten(-3, -2)
    if layout.format == 2:
        values, scales = blocks[..., : -4 * BLOCK], blocks[..., -4 * BLOCK :]
        wide = values.contiguous().view(torch.int8).view(*leading, -1, BLOCK).float()
        return wide * scales.contiguous().view(torch.float32).unsqueeze(-2)
    groups = blocks.view(*leading, -1, layout.header_bytes + layout.group * BLOCK // 2)
    return _unpacked_groups(groups, layout).flatten(-3, -2)


def _unpacked_groups(groups: Tensor, layout: PackedLayout) -> Tensor:
    """Return the weights of groups [..., bytes] as [..., group, BLOCK]."""
    header, words = groups.tensor_split([layout.header_bytes], dim=-1)
    words = words.contiguous().view(torch.int32).view(*groups.shape[:-1], -1, 1, BLOCK)
    places = torch.arange(0, 32, 4, dtype=torch.int32)[:, None]
    integers = (words << (28 - places) >> 28).flatten(-3, -2).float()
    stored = torch.float32 if layout.has_wide_scales else torch.bfloat16
    scales = header[..., : stored.itemsize * BLOCK].contiguous().view(stored).float()
    if layout.has_zeros:
        zeros = header[..., -BLOCK:].contiguous().view(torch.int8)
        integers = integers - zeros.unsqueeze(-2)
    return integers * scales.unsqueeze(-2)


AnyWeight = Tensor | IntegerWeight | PackedWeight
"""A weight in any of its forms."""
