"""Launchers of the ops that treat every row alone; what a kernel does not take goes to torch."""

import torch
from torch import Tensor

from specdecode_kernels import launches, reference
from specdecode_kernels.native.library import library
from specdecode_kernels.rows import as_rows


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Launch on x [..., dim] and weight [dim]."""
    if not _fits(weight, x):
        return reference.rms_norm(x, weight, eps)
    launches.count("rms_norm", "native")
    rows = as_rows(x)
    out = torch.empty(x.shape, dtype=x.dtype)
    library(x.dtype).rms_norm(
        rows.data_ptr(), rows.stride(0), weight.data_ptr(), eps, out.data_ptr(), *rows.shape
    )
    return out


def add_rms_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Launch on x and update [..., dim]; the sum and its norm."""
    if not _fits(weight, x):
        return reference.add_rms_norm(x, update, weight, eps)
    launches.count("add_rms_norm", "native")
    rows, updates = as_rows(x), as_rows(update)
    summed, normed = torch.empty(x.shape, dtype=x.dtype), torch.empty(x.shape, dtype=x.dtype)
    library(x.dtype).add_rms_norm(
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


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Launch on q and k [rows, heads, dim], which it writes over, if their heads lie together."""
    wide = (cos, sin)
    if k.dtype != q.dtype or any(x.dtype != torch.float32 or not x.is_contiguous() for x in wide):
        return reference.apply_rope(q, k, cos, sin)
    launches.count("apply_rope", "native")
    q, k = with_heads_together(q), with_heads_together(k)
    library(q.dtype).apply_rope(
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


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Launch on gate and up [..., dim]."""
    if up.dtype != gate.dtype:
        return reference.silu_and_mul(gate, up)
    launches.count("silu_and_mul", "native")
    rows, others = as_rows(gate), as_rows(up)
    out = torch.empty(gate.shape, dtype=gate.dtype)
    library(gate.dtype).silu_and_mul(
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


def _fits(weight: Tensor, x: Tensor) -> bool:
    return weight.dtype == x.dtype and weight.is_contiguous()
