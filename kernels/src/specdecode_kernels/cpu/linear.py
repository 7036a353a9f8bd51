"""Linear maps with weights in the order in which they are read."""

import torch
from torch import Tensor

from specdecode_kernels.cpu.library import Library
from specdecode_kernels.metadata import PackedWeight
from specdecode_kernels.torch import linear as reference

BLOCK = 64
"""Outputs whose weights lie side by side; as in linear.c."""


def pack_weight(library: Library, weight: Tensor) -> PackedWeight:
    """Pack a weight [outputs, inputs] of the library's type."""
    outputs, inputs = weight.shape
    in_blocks = -(-outputs // BLOCK)
    pair = () if weight.dtype == torch.float32 else (2,)
    steps = -(-inputs // 2) if pair else inputs
    blocks = torch.empty(in_blocks, steps, BLOCK, *pair, dtype=weight.dtype)
    weight = weight.contiguous()
    library.pack(weight.data_ptr(), blocks.data_ptr(), outputs, inputs)
    return PackedWeight(blocks, weight.shape)


def linear(
    library: Library, x: Tensor, weight: Tensor | PackedWeight, bias: Tensor | None
) -> Tensor:
    """Map x [rows, inputs], of a packed weight's type, to [rows, outputs]."""
    if not isinstance(weight, PackedWeight):
        return reference.linear(x, weight, bias)
    if x.stride(1) != 1:
        x = x.contiguous()
    bias = None if bias is None else bias.contiguous()
    rows, (outputs, inputs) = x.shape[0], weight.shape
    out = torch.empty(rows, outputs, dtype=x.dtype)
    library.linear(
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
