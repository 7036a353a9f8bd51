"""The ops that treat every row alone: norm, rotation, gate."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels.torch.by_row import by_row, update_by_row


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for anything narrower: for norms, gates and rotations."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise in wide arithmetic; round to the type once."""
    wide = x.to(accumulation_dtype(x.dtype))
    squares = wide.square().reshape(-1, x.shape[-1])
    mean = by_row(lambda row: row.mean(dim=-1, keepdim=True), squares)
    scale = torch.sqrt(mean + eps).reciprocal().view(*x.shape[:-1], 1)
    return (wide * scale * weight).to(x.dtype)


def add_parts(parts: Tensor) -> Tensor:
    """Add parts [n, ...] in their order, in float32 for types of 16 bits; cast the sum once."""
    first, *between, last = parts
    if between:
        first = first.float() if first.dtype.itemsize == 2 else first.clone()
        for part in between:
            first += part
    # Two numbers of 16 bits are added in float32, and the result is cast as it is written.
    return torch.add(first, last, out=torch.empty_like(last))


def add_rms_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Cast the sum to its type before it is normalised: the next layer reads that sum."""
    summed = x + (update if update.dim() == x.dim() else add_parts(update))
    return summed, rms_norm(summed, weight, eps)


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return rotate(q, cos, sin), rotate(k, cos, sin)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (first half, second half) of x [rows, heads, dim] by its row's angle."""
    first, second = x.to(accumulation_dtype(x.dtype)).chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]  # [rows, 1, dim / 2]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    return _gated(partial(functional.silu, inplace=True), gate, up)


def gelu_tanh_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    return _gated(partial(torch.ops.aten.gelu_, approximate="tanh"), gate, up)


def _gated(activate: Callable[[Tensor], Tensor], gate: Tensor, up: Tensor) -> Tensor:
    """Activate the gate in place, in wide arithmetic, and multiply; round to the type once."""
    wide = gate.to(accumulation_dtype(gate.dtype))
    rows = wide.reshape(-1, gate.shape[-1])
    activated = update_by_row(activate, rows)
    return (activated.reshape(gate.shape) * up).to(gate.dtype)


def softcap(x: Tensor, cap: float) -> Tensor:
    return update_by_row(torch.tanh_, x / cap).mul_(cap)
