"""Row independence on a CPU, by construction: each row is computed by a call of its own.

A BLAS picks its kernel, and so the order of a sum, by the shape of the call and by where a row is
in it; torch's vector loops compute the last few elements of a call with another exp or log than the
others. Which shapes agree differs between processors. Calls of one shape, stride and alignment on
one number of threads agree with each other on all of them.
"""

from collections.abc import Callable

import torch
from torch import Tensor

ALIGNMENT = 64
"""Bytes to which torch aligns what it allocates on a CPU: a cache line, a register of AVX-512."""


def computes_by_row(tensor: Tensor) -> bool:
    """Whether rows on the tensor's device are computed one by one.

    Kernels of other devices are chosen by shape, without a promise of equal bits.
    """
    return tensor.device.type == "cpu"


def by_row(compute: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Concatenate `compute` of each row [1, n] of tensors [rows, n] on a CPU.

    On other devices it is one call. Sums, exponentials and logarithms need this; single additions,
    products, quotients and square roots are rounded correctly wherever they are.
    """
    if not computes_by_row(tensors[0]) or not tensors[0].shape[0]:
        return compute(*tensors)
    if tensors[0].shape[0] == 1:
        return compute(*map(_aligned, tensors))
    rows = zip(*(torch.split(_aligned(tensor), 1) for tensor in tensors), strict=True)
    return torch.cat([compute(*parts) for parts in rows])


def update_by_row(update: Callable[[Tensor], object], tensor: Tensor) -> Tensor:
    """As `by_row` for an `update` in place, which costs a third; returns a changed copy."""
    if not computes_by_row(tensor):
        result = tensor.clone()
        update(result)
        return result
    result = _padded(tensor)
    for row in result.unbind():
        update(row)
    return result


def log_softmax(logits: Tensor) -> Tensor:
    """Log-probabilities of logits [..., vocab], row by row on a CPU."""
    rows = logits.reshape(-1, logits.shape[-1])
    return by_row(lambda row: torch.log_softmax(row, dim=-1), rows).view(logits.shape)


def _aligned(tensor: Tensor) -> Tensor:
    """Give every row of [rows, n] unit stride and 64-byte alignment, with a copy if it has not.

    Rows of a tensor that torch has just allocated are aligned if their stride is.
    """
    entries = ALIGNMENT // tensor.element_size()
    is_aligned = tensor.data_ptr() % ALIGNMENT == 0 and tensor.stride(0) % entries == 0
    if is_aligned and tensor.stride(1) == 1:
        return tensor
    return _padded(tensor)


def _padded(tensor: Tensor) -> Tensor:
    """Copy [rows, n] with a stride that keeps every row aligned."""
    entries = ALIGNMENT // tensor.element_size()
    rows, width = tensor.shape
    padded = tensor.new_empty(rows, -(-width // entries) * entries)[:, :width]
    return padded.copy_(tensor)
