"""A linear layer whose rows do not depend on how many there are."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels.torch.by_row import by_row, computes_by_row
from specdecode_kernels.torch.elementwise import accumulation_dtype
from specdecode_kernels.weights import QuantizedTensor

BLOCK_BYTES = 3 << 20
"""Weights that all rows use before the next ones are read: they stay in a cache meanwhile.

With 64 rows of 6144 x 768 float32 weights this takes half the time of whole weights row by row.
"""


def linear(x: Tensor, weight: Tensor | QuantizedTensor, bias: Tensor | None) -> Tensor:
    """Map x [rows, inputs] by weight [outputs, inputs]; on a CPU with one BLAS call per row.

    A quantized weight becomes a plain one in wide arithmetic, some outputs at a time.

    How the weight is cut depends on the weight alone, so every row makes the same calls. They use
    one thread: on some processors a BLAS divides each sum among its threads.
    """
    if isinstance(weight, QuantizedTensor):
        return _linear_of_quantized(x, weight, bias)
    if not computes_by_row(x):
        return functional.linear(x, weight, bias)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _linear_by_row(x, weight, bias)
    finally:
        torch.set_num_threads(threads)


def map_heads(x: Tensor, weight: Tensor) -> Tensor:
    """Map each head of x [rows, heads, inputs] by its weight of [heads, outputs, inputs]."""
    if not computes_by_row(x):
        return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2)).transpose(0, 1)
    heads = [linear(x[:, head], own, None) for head, own in enumerate(weight)]
    return torch.stack(heads, dim=1)


def _linear_by_row(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = x.new_empty(x.shape[0], weight.shape[0])
    step = max(1, BLOCK_BYTES // max(1, weight.shape[1] * weight.element_size()))
    for first in range(0, weight.shape[0], step):
        last = first + step
        added = None if bias is None else bias[first:last]
        map_row = partial(functional.linear, weight=weight[first:last], bias=added)
        out[:, first:last] = by_row(map_row, x)
    return out


def _linear_of_quantized(x: Tensor, weight: QuantizedTensor, bias: Tensor | None) -> Tensor:
    outputs, inputs = weight.shape
    dtype = accumulation_dtype(x.dtype)
    step = max(1, BLOCK_BYTES // max(1, inputs * dtype.itemsize))
    parts = [
        linear(
            x.to(dtype),
            weight.rows(first, first + step),
            None if bias is None else bias[first : first + step].to(dtype),
        )
        for first in range(0, outputs, step)
    ]
    return torch.cat(parts, dim=1).to(x.dtype)
