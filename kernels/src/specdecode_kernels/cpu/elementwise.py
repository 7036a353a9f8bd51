"""Launchers of the ops that treat every row alone; tensors that C does not take go to torch."""

import torch
from torch import Tensor

from specdecode_kernels.cpu.library import Library
from specdecode_kernels.rows import as_rows
from specdecode_kernels.torch import elementwise as reference


def rms_norm(library: Library, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Launch on x [..., dim] and weight [dim]."""
    if not x.dtype == weight.dtype == library.dtype or not weight.is_contiguous():
        return reference.rms_norm(x, weight, eps)
    rows = as_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype)
    library.rms_norm(
        rows.data_ptr(), rows.stride(0), weight.data_ptr(), eps, out.data_ptr(), *rows.shape
    )
    return out


def add_rms_norm(
    library: Library, x: Tensor, update: Tensor, weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Launch on x and update [..., dim]; the sum and its norm."""
    if not x.dtype == weight.dtype == library.dtype or not weight.is_contiguous():
        return reference.add_rms_norm(x, update, weight, eps)
    rows, updates = as_rows(x), as_rows(update)
    summed, normed = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
    library.add_rms_norm(
        rows.data_ptr(),
        rows.stride(0),
        updates.data_ptr(),
        updates.stride(0),
        weight.data_ptr(),
        eps,
        summed.data_ptr(),
        normed.data_ptr(),
        *rows.shape,
    )
    return summed, normed


def apply_rope(
    library: Library, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Launch on q and k [rows, heads, dim], which it writes over, if their heads lie together."""
    takes_angles = cos.dtype == sin.dtype == torch.float32
    if not takes_angles or not q.dtype == k.dtype == library.dtype:
        return reference.apply_rope(q, k, cos, sin)
    q, k = with_heads_together(q), with_heads_together(k)
    cos, sin = cos.contiguous(), sin.contiguous()
    library.apply_rope(
        q.data_ptr(),
        q.stride(0),
        q.shape[1],
        k.data_ptr(),
        k.stride(0),
        k.shape[1],
        cos.data_ptr(),
        sin.data_ptr(),
        q.shape[0],
        q.shape[2],
    )
    return q, k


def silu_and_mul(library: Library, gate: Tensor, up: Tensor) -> Tensor:
    """Launch on gate and up [..., dim]."""
    if not gate.dtype == up.dtype == library.dtype:
        return reference.silu_and_mul(gate, up)
    rows, others = as_rows(gate), as_rows(up)
    out = torch.empty(gate.shape, dtype=gate.dtype)
    library.silu_and_mul(
        rows.data_ptr(),
        rows.stride(0),
        others.data_ptr(),
        others.stride(0),
        out.data_ptr(),
        *rows.shape,
    )
    return out


def with_heads_together(x: Tensor) -> Tensor:
    """Copy x [rows, heads, dim] unless every row's heads lie side by side."""
    return x if x.stride()[1:] == (x.shape[2], 1) else x.contiguous()
