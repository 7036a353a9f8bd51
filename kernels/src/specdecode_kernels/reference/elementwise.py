"""The ops that treat every row alone: norm, rotation, gate, store."""

import torch
from torch import Tensor

from specdecode_kernels.reference.precision import accumulation_dtype


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise in wide arithmetic, round once."""
    wide = x.to(accumulation_dtype(x.dtype))
    scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)


def add_rms_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Round the sum to its type before it is normalised: it is what the next layer reads."""
    summed = x + update
    return summed, rms_norm(summed, weight, eps)


def apply_rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate both into new tensors."""
    return rotate(q, cos, sin), rotate(k, cos, sin)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (first half, second half) of x [rows, heads, dim] by its row's angle."""
    first, second = x.to(accumulation_dtype(x.dtype)).chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]  # [rows, 1, dim / 2]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)


def silu_and_mul(gate: Tensor, up: Tensor) -> Tensor:
    """Multiply in wide arithmetic, round once."""
    wide = gate.to(accumulation_dtype(gate.dtype))
    return (torch.nn.functional.silu(wide) * up).to(gate.dtype)


def store_kv(k_pool: Tensor, v_pool: Tensor, rows: Tensor, k: Tensor, v: Tensor) -> None:
    """Copy row by row; which of two writes to one row wins is left open."""
    k_pool.index_copy_(0, rows, k)
    v_pool.index_copy_(0, rows, v)
