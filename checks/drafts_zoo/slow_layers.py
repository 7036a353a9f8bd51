"""Decoder layers of whole texts in plain torch: one text, positions 0, 1, …, nothing cached."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

Tensors = dict[str, Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """Sizes and constants of one decoder layer; names as in config.json."""

    hidden_size: int = 64
    intermediate_size: int = 48
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    hidden_act: str = "silu"  # or gelu_pytorch_tanh


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalize the last dimension."""
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def rotate_halves(x: Tensor, theta: float) -> Tensor:
    """Rotate x [rows, heads, dim] at positions 0, 1, …: number j with number j + dim / 2."""
    half = x.shape[-1] // 2
    frequencies = theta ** -(torch.arange(half, dtype=torch.float64) / half)
    angles = torch.outer(torch.arange(len(x), dtype=torch.float64), frequencies)[:, None]
    first, second = x[..., :half], x[..., half:]
    turned = (
        first * angles.cos() - second * angles.sin(),
        second * angles.cos() + first * angles.sin(),
    )
    return torch.cat(turned, dim=-1).to(x.dtype)


def linear(w: Tensors, name: str, x: Tensor) -> Tensor:
    """Apply one map, with its bias if there is one."""
    y = x @ w[f"{name}.weight"].T
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def attention(
    w: Tensors, prefix: str, sizes: LayerSizes, read: Tensor, window: int | None = None
) -> Tensor:
    """Attend from each row of `read` [rows, inputs] to itself and the rows before it.

    Args:
        window: the latest positions that a row sees, its own included; None: all.
    """
    rows, dim = len(read), sizes.head_dim
    q, k, v = (linear(w, f"{prefix}.{part}_proj", read).view(rows, -1, dim) for part in "qkv")
    if f"{prefix}.q_norm.weight" in w:
        q = rms_norm(q, w[f"{prefix}.q_norm.weight"], sizes.rms_norm_eps)
        k = rms_norm(k, w[f"{prefix}.k_norm.weight"], sizes.rms_norm_eps)
    q, k = rotate_halves(q, sizes.rope_theta), rotate_halves(k, sizes.rope_theta)
    groups = sizes.num_attention_heads // sizes.num_key_value_heads
    k, v = (part.repeat_interleave(groups, dim=1) for part in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * dim**-0.5
    age = torch.arange(rows)[:, None] - torch.arange(rows)
    seen = (age >= 0) & (age < (window or rows))
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    mixed = torch.einsum("hij,jhd->ihd", weights, v).flatten(1)
    return linear(w, f"{prefix}.o_proj", mixed)


def mlp(w: Tensors, prefix: str, sizes: LayerSizes, x: Tensor) -> Tensor:
    """Apply a gated MLP."""
    gate, up = (linear(w, f"{prefix}.{part}_proj", x) for part in ("gate", "up"))
    opened = silu(gate) if sizes.hidden_act == "silu" else gelu(gate, approximate="tanh")
    return linear(w, f"{prefix}.down_proj", opened * up)


def decoder_layer(
    w: Tensors,
    prefix: str,
    sizes: LayerSizes,
    x: Tensor,
    *,
    read: Tensor | None = None,
    window: int | None = None,
) -> Tensor:
    """Compute one layer over the residual stream x [rows, hidden].

    Args:
        read: what attention reads; by default the norm of x.
    """
    eps = sizes.rms_norm_eps
    if read is None:
        read = rms_norm(x, w[f"{prefix}.input_layernorm.weight"], eps)
    x = x + attention(w, f"{prefix}.self_attn", sizes, read, window)
    normed = rms_norm(x, w[f"{prefix}.post_attention_layernorm.weight"], eps)
    return x + mlp(w, f"{prefix}.mlp", sizes, normed)


def draw_layer(
    prefix: str,
    sizes: LayerSizes,
    generator: torch.Generator,
    *,
    inputs: int | None = None,
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm"),
    qk_norm: bool = False,
    biases: tuple[str, ...] = (),
) -> Tensors:
    """Draw the tensors of one layer.

    Args:
        inputs: that attention reads; by default the hidden size.
        biases: maps with a bias, such as q_proj.
    """
    hidden, inner, dim = sizes.hidden_size, sizes.intermediate_size, sizes.head_dim
    q, kv = sizes.num_attention_heads * dim, sizes.num_key_value_heads * dim
    read = inputs or hidden
    maps = {
        "self_attn.q_proj": (q, read),
        "self_attn.k_proj": (kv, read),
        "self_attn.v_proj": (kv, read),
        "self_attn.o_proj": (hidden, q),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    tensors = {
        f"{prefix}.{name}.weight": draw_map(shape, generator) for name, shape in maps.items()
    }
    for name, shape in maps.items():
        if name.rpartition(".")[2] in biases:
            tensors[f"{prefix}.{name}.bias"] = 0.1 * torch.randn(shape[0], generator=generator)
    sizes_of_norms = dict.fromkeys(norms, hidden)
    if qk_norm:
        sizes_of_norms |= {"self_attn.q_norm": dim, "self_attn.k_norm": dim}
    for name, size in sizes_of_norms.items():
        tensors[f"{prefix}.{name}.weight"] = draw_norm(size, generator)
    return tensors


def draw_map(shape: tuple[int, int], generator: torch.Generator) -> Tensor:
    """Draw the weight of a linear map [outputs, inputs]."""
    width: float = shape[1] ** -0.5
    return torch.randn(shape, generator=generator) * width


def draw_norm(size: int, generator: torch.Generator) -> Tensor:
    """Draw the weight of a norm."""
    return 1 + 0.2 * torch.randn(size, generator=generator)
