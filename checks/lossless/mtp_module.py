"""Writes exports of MTP modules for a target: random, close to passing hidden states on."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

NOISE = 0.1
"""Of what the layer adds: drafts agree with the target often enough to accept some."""


def write_mtp_modules(target: Path, into: Path, count: int = 1) -> Path:
    """Write modules in DeepSeek's layout with the sizes of a target's layer; return their folder.

    Without `kv_lora_rank` they have a Llama's layer, with it multi-head latent attention.
    """
    keys = json.loads((target / "config.json").read_text())
    name = "DeepseekV3" if "kv_lora_rank" in keys else "Llama"
    keys |= {"architectures": [f"{name}ForCausalLMNextN"], "num_hidden_layers": 1}
    into.mkdir(parents=True)
    (into / "config.json").write_text(json.dumps(keys))
    modules: dict[str, Tensor] = {}
    for number in range(count):
        module = _draw_module(keys, torch.Generator().manual_seed(number))
        modules |= {f"model.layers.{number}.{name}.weight": one for name, one in module.items()}
    save_file(modules, into / "model.safetensors")
    return into


def _draw_module(keys: Mapping[str, int], generator: torch.Generator) -> dict[str, Tensor]:
    hidden, inner = keys["hidden_size"], keys["intermediate_size"]

    def drawn(rows: int, columns: int) -> Tensor:
        scale: float = NOISE * columns**-0.5
        return scale * torch.randn(rows, columns, generator=generator)

    attention = _latent_shapes(keys) if "kv_lora_rank" in keys else _attention_shapes(keys)
    ones = ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm")
    return {
        **{name: torch.ones(hidden) for name in ones},
        **{
            f"self_attn.{part}_a_layernorm": torch.ones(keys[f"{part}_lora_rank"])
            for part in ("q", "kv")
            if f"{part}_lora_rank" in keys
        },
        "eh_proj": torch.cat((drawn(hidden, hidden), torch.eye(hidden)), dim=1),
        **{f"self_attn.{name}": drawn(*shape) for name, shape in attention.items()},
        "mlp.gate_proj": drawn(inner, hidden),
        "mlp.up_proj": drawn(inner, hidden),
        "mlp.down_proj": drawn(hidden, inner),
    }


def _attention_shapes(keys: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    hidden = keys["hidden_size"]
    head_dim = keys.get("head_dim") or hidden // keys["num_attention_heads"]
    q, kv = (keys[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))
    return {
        "q_proj": (q, hidden),
        "k_proj": (kv, hidden),
        "v_proj": (kv, hidden),
        "o_proj": (hidden, q),
    }


def _latent_shapes(keys: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    hidden, heads, rank = keys["hidden_size"], keys["num_attention_heads"], keys["kv_lora_rank"]
    nope, rope, v_dim = (keys[f"{part}_head_dim"] for part in ("qk_nope", "qk_rope", "v"))
    return {
        "q_a_proj": (keys["q_lora_rank"], hidden),
        "q_b_proj": (heads * (nope + rope), keys["q_lora_rank"]),
        "kv_a_proj_with_mqa": (rank + rope, hidden),
        "kv_b_proj": (heads * (nope + v_dim), rank),
        "o_proj": (hidden, heads * v_dim),
    }
