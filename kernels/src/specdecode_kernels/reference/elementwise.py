"""The ops that treat every row alone: norm, rotation, gate."""

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
