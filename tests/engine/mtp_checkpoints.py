"""Adds random MTP modules in published names to tiny checkpoints."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]

LAYOUTS: Mapping[str, tuple[str, str, str, str, str]] = {
    "deepseek": (
        "model.layers.{}.enorm",
        "model.layers.{}.hnorm",
        "model.layers.{}.eh_proj",
        "model.layers.{}.shared_head.norm",
        "model.layers.{}",
    ),
    "mimo": (
        "model.mtp_layers.{}.token_layernorm",
        "model.mtp_layers.{}.hidden_layernorm",
        "model.mtp_layers.{}.input_proj",
        "model.mtp_layers.{}.final_layernorm",
        "model.mtp_layers.{}",
    ),
    "qwen": (
        "mtp.pre_fc_norm_embedding",
        "mtp.pre_fc_norm_hidden",
        "mtp.fc",
        "mtp.norm",
        "mtp.layers.{}",
    ),
    "inkling": (
        "model.mtp.layers.{}.embed_norm",
        "model.mtp.layers.{}.hidden_norm",
        "model.mtp.layers.{}.input_proj",
        "model.mtp.chain_norm",
        "model.mtp.layers.{}.transformer_block",
    ),
}
"""Names of norms, map and layer, with the number of the module."""


LATENT_KEYS: Mapping[str, Any] = {
    "architectures": ["DeepseekV3ForCausalLMNextN"],
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 24,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
"""Of an export whose module has multi-head latent attention, for a target with four heads."""


def draw_module(keys: Mapping[str, int], layout: str, number: int, seed: int = 3) -> Tensors:
    """Draw a module with a Llama's layer of the sizes in config.json."""
    generator = torch.Generator().manual_seed(seed + number)
    hidden, inner = keys["hidden_size"], keys["intermediate_size"]
    token_norm, hidden_norm, projection, norm, layer = (
        name.format(number) for name in LAYOUTS[layout]
    )
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys((token_norm, hidden_norm, norm), (hidden,)),
        projection: (hidden, 2 * hidden),
        f"{layer}.input_layernorm": (hidden,),
        f"{layer}.post_attention_layernorm": (hidden,),
        **{f"{layer}.self_attn.{name}": shape for name, shape in _attention_shapes(keys)},
        f"{layer}.mlp.gate_proj": (inner, hidden),
        f"{layer}.mlp.up_proj": (inner, hidden),
        f"{layer}.mlp.down_proj": (hidden, inner),
    }
    return {
        f"{name}.weight": torch.randn(shape, generator=generator) * 0.2 + (len(shape) == 1)
        for name, shape in shapes.items()
    }


def _attention_shapes(keys: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads, rank = keys["hidden_size"], keys["num_attention_heads"], keys.get("kv_lora_rank")
    if rank is None:
        q, kv = heads * keys["head_dim"], keys["num_key_value_heads"] * keys["head_dim"]
        yield from {"q_proj": (q, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}.items()
        yield "o_proj", (hidden, q)
        return
    nope, rope, v_dim = (keys[f"{part}_head_dim"] for part in ("qk_nope", "qk_rope", "v"))
    q, q_rank = heads * (nope + rope), keys["q_lora_rank"]
    if q_rank is None:
        yield "q_proj", (q, hidden)
    else:
        yield from {"q_a_proj": (q_rank, hidden), "q_b_proj": (q, q_rank)}.items()
        yield "q_a_layernorm", (q_rank,)
    yield "kv_a_proj_with_mqa", (rank + rope, hidden)
    yield "kv_a_layernorm", (rank,)
    yield "kv_b_proj", (heads * (nope + v_dim), rank)
    yield "o_proj", (hidden, heads * v_dim)


def with_modules(target: Path, into: Path, layout: str, *numbers: int, **keys: object) -> Path:
    """Copy a target with modules of these numbers, and keys added to its config.json."""
    into.mkdir(parents=True)
    config = json.loads((target / "config.json").read_text()) | keys
    (into / "config.json").write_text(json.dumps(config))
    tensors = load_file(target / "model.safetensors")
    for number in numbers:
        tensors |= draw_module(config, layout, number)
    save_file(tensors, into / "model.safetensors", metadata={"format": "pt"})
    return into


def export_module(target: Path, into: Path, layout: str = "deepseek", **keys: object) -> Path:
    """Write the export of one module for a target."""
    into.mkdir(parents=True)
    config = json.loads((target / "config.json").read_text())
    config |= {"architectures": ["LlamaForCausalLMNextN"], "num_hidden_layers": 1, **keys}
    (into / "config.json").write_text(json.dumps(config))
    save_file(draw_module(config, layout, 0), into / "model.safetensors")
    return into
