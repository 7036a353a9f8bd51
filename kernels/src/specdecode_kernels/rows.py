"""Tensors as rows of contiguous elements: what kernels that treat every row alone take."""

from torch import Tensor


def as_rows(x: Tensor) -> Tensor:
    """View [..., dim] as [rows, dim] with unit stride within a row; copied only if it must be."""
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()
