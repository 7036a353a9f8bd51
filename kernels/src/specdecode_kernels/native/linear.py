"""Linear maps with weights in the order in which they are read, and their launcher."""

import os
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_kernels import implementation, launches
from specdecode_kernels.native import library as native
from specdecode_kernels.native.library import library

VARIABLE = "SPECDECODE_LINEARS"
"""Set to `plain` it keeps every weight as it is: to look for a fault, or to change weights."""

BLOCK = 64
"""Outputs whose weights lie side by side; as in linear.c."""


@dataclass(frozen=True, slots=True, eq=False)
class PackedWeight:
    """A weight [outputs, inputs] in blocks of outputs; see linear.c."""

    blocks: Tensor  # [blocks, inputs, BLOCK], of bfloat16 [blocks, pairs of inputs, BLOCK, 2]
    shape: torch.Size  # outputs and inputs

    @property
    def dtype(self) -> torch.dtype:
        """Type of the entries."""
        return self.blocks.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes that it takes, what fills up the last block included."""
        return self.blocks.nbytes

    def plain(self) -> Tensor:
        """Lay the weight out anew as an ordinary tensor [outputs, inputs]."""
        outputs, inputs = self.shape
        by_output = self.blocks.movedim(2, 1).flatten(2).flatten(0, 1)
        return by_output[:outputs, :inputs].contiguous()


def obstacle(device: torch.device, dtype: torch.dtype) -> str | None:
    """Say what keeps weights from being packed, or nothing.

    Raises:
        ValueError: the variable holds a word that means nothing.
    """
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "plain"):
        raise ValueError(f"{VARIABLE}={wanted!r} is unknown: set plain, or leave it out")
    if wanted == "plain":
        return f"{VARIABLE} is plain"
    if implementation.forced() == "torch":
        return f"{implementation.VARIABLE} is torch"
    if device.type != "cpu":
        return f"packing is for a CPU, not {device}"
    return native.obstacle(dtype)


def pack(weight: Tensor) -> PackedWeight:
    """Pack a weight [outputs, inputs] of a type that has no obstacle."""
    outputs, inputs = weight.shape
    in_blocks = -(-outputs // BLOCK)
    pair = () if weight.dtype == torch.float32 else (2,)
    steps = -(-inputs // 2) if pair else inputs
    blocks = torch.empty(in_blocks, steps, BLOCK, *pair, dtype=weight.dtype)
    weight = weight.contiguous()
    library(weight.dtype).pack(weight.data_ptr(), blocks.data_ptr(), outputs, inputs)
    return PackedWeight(blocks, weight.shape)


def map_rows(x: Tensor, weight: PackedWeight, bias: Tensor | None) -> Tensor:
    """Map x [rows, inputs], of the weight's type, to [rows, outputs]."""
    launches.count("linear", "native")
    if x.stride(1) != 1:
        x = x.contiguous()
    bias = None if bias is None else bias.contiguous()
    rows, (outputs, inputs) = x.shape[0], weight.shape
    out = torch.empty(rows, outputs, dtype=x.dtype)
    library(x.dtype).linear(
        weight.blocks.data_ptr(),
        x.data_ptr(),
        x.stride(0),
        None if bias is None else bias.data_ptr(),
        out.data_ptr(),
        rows,
        outputs,
        inputs,
    )
    return out
