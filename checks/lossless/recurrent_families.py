"""Checkpoints with recurrent layers and the weights of a Llama: the first layer has a state."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Keys = dict[str, Any]

DELTA = "qwen3_5_text"
CONVOLUTION = "lfm2"
HEAD_NORM = 2.0
"""Mean weight of q_norm and k_norm: it makes attention about as sharp as in the trained Llama."""
DELTA_DIM = 8
"""Numbers of a key or value of a gated delta net."""
GATE_NOISE = 0.2
"""Of the weights of gates, in parts of their usual width."""
CONV_WIDTH = 3
"""Inputs that a short convolution reads."""


def _to_qwen3_5(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """A gated delta net in place of attention in the first layer, and gates of what is read.

    Gates are about 1/2, which the output's weights make up for; norms are stored less 1.
    """
    layers, hidden, head_dim = keys["num_hidden_layers"], keys["hidden_size"], keys["head_dim"]
    types = ["full_attention"] * layers
    types[0] = "linear_attention"
    add_head_norms(keys, tensors, generator, stored_less=1.0)
    tensors["model.norm.weight"] -= 1
    for number, kind in enumerate(types):
        layer = f"model.layers.{number}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}.{norm}.weight"] -= 1
        if kind == "linear_attention":
            names = [name for name in tensors if name.startswith(f"{layer}.self_attn.")]
            o_proj = f"{layer}.self_attn.o_proj.weight"
            size = float({name: tensors.pop(name) for name in names}[o_proj].float().std())
            _add_delta_net(f"{layer}.linear_attn", hidden, size, tensors, generator)
            continue
        tensors[f"{layer}.self_attn.o_proj.weight"] *= 2
        name = f"{layer}.self_attn.q_proj.weight"
        queries = tensors[name].view(-1, head_dim, hidden)
        gates = torch.randn(queries.shape, generator=generator) * GATE_NOISE * hidden**-0.5
        both = torch.stack((queries, gates.to(queries.dtype)), dim=1)
        tensors[name] = both.flatten(0, 2).contiguous()
    keys |= {
        "layer_types": types,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": DELTA_DIM,
        "linear_value_head_dim": DELTA_DIM,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {
            **keys["rope_parameters"],
            "partial_rotary_factor": 1.0,
            "mrope_section": [head_dim // 2, 0, 0],
        },
    }


def _add_delta_net(
    name: str, hidden: int, size: float, tensors: Tensors, generator: torch.Generator
) -> None:
    """Draw a gated delta net of 2 key heads and 4 value heads, whose outputs have about a size."""
    keys, values = 2 * DELTA_DIM, 4 * DELTA_DIM
    dtype, width = tensors["model.norm.weight"].dtype, hidden**-0.5
    drawn = {
        "in_proj_qkv.weight": (2 * keys + values, hidden, width),
        "in_proj_z.weight": (values, hidden, width),
        "in_proj_b.weight": (4, hidden, width),
        "in_proj_a.weight": (4, hidden, width),
        "out_proj.weight": (hidden, values, size),
    }
    made = {
        part: torch.randn(rows, inputs, generator=generator) * each
        for part, (rows, inputs, each) in drawn.items()
    }
    made["conv1d.weight"] = torch.randn(2 * keys + values, 1, 4, generator=generator)
    made["A_log"] = torch.randn(4, generator=generator) - 1
    made["dt_bias"] = torch.randn(4, generator=generator)
    made["norm.weight"] = torch.rand(DELTA_DIM, generator=generator) + 0.5
    tensors.update({f"{name}.{part}": one.to(dtype) for part, one in made.items()})


def _to_lfm2(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """A short convolution in place of attention in the first layer, and norms of heads."""
    layers, hidden = keys["num_hidden_layers"], keys["hidden_size"]
    dtype = tensors["model.norm.weight"].dtype
    add_head_norms(keys, tensors, generator)
    size = float(tensors["model.layers.0.self_attn.o_proj.weight"].float().std())
    for name in [name for name in tensors if name.startswith("model.layers.0.self_attn.")]:
        del tensors[name]
    for old, new in _LFM2_NAMES.items():
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)
    made = {
        "in_proj.weight": torch.randn(3 * hidden, hidden, generator=generator) * hidden**-0.5,
        "conv.weight": torch.randn(hidden, 1, CONV_WIDTH, generator=generator),
        "out_proj.weight": torch.randn(hidden, hidden, generator=generator) * size,
    }
    tensors.update({f"model.layers.0.conv.{name}": one.to(dtype) for name, one in made.items()})
    keys |= {
        "layer_types": ["conv", *["full_attention"] * (layers - 1)],
        "conv_L_cache": CONV_WIDTH,
        "norm_eps": keys["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,
    }


_LFM2_NAMES = {
    "model.norm.": "model.embedding_norm.",
    ".input_layernorm.": ".operator_norm.",
    ".post_attention_layernorm.": ".ffn_norm.",
    ".mlp.gate_proj.": ".feed_forward.w1.",
    ".mlp.up_proj.": ".feed_forward.w3.",
    ".mlp.down_proj.": ".feed_forward.w2.",
    ".self_attn.o_proj.": ".self_attn.out_proj.",
    ".self_attn.q_norm.": ".self_attn.q_layernorm.",
    ".self_attn.k_norm.": ".self_attn.k_layernorm.",
}


def add_head_norms(
    keys: Keys, tensors: Tensors, generator: torch.Generator, stored_less: float = 0.0
) -> None:
    """Add norms of query and key heads to every layer."""
    dtype = tensors["model.norm.weight"].dtype
    for number in range(keys["num_hidden_layers"]):
        for part in "qk":
            drawn = normal(keys["head_dim"], dtype, generator)
            name = f"model.layers.{number}.self_attn.{part}_norm.weight"
            tensors[name] = HEAD_NORM - stored_less + 0.2 * drawn


def normal(count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Draw normal numbers of a type."""
    return torch.randn(count, generator=generator).to(dtype)


RECURRENT_CHANGES: Mapping[str, tuple[str, Callable[[Keys, Tensors, torch.Generator], None]]] = {
    DELTA: ("Qwen3_5ForCausalLM", _to_qwen3_5),
    CONVOLUTION: ("Lfm2ForCausalLM", _to_lfm2),
}
