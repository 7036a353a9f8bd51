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
    """Write modules in DeepSeek's layout with the sizes of a Llama's layer; return their folder."""
    keys = json.loads((target / "config.json").read_text())
    keys |= {"architectures": ["LlamaForCausalLMNextN"], "num_hidden_layers": 1}
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
    head_dim = keys.get("head_dim") or hidden // keys["num_attention_heads"]
    q, kv = (keys[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))

    def drawn(rows: int, columns: int) -> Tensor:
        scale: float = NOISE * columns**-0.5
        return scale * torch.randn(rows, columns, generator=generator)

    ones = ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm")
    return {
        **{name: torch.ones(hidden) for name in ones},
        "eh_proj": torch.cat((drawn(hidden, hidden), torch.eye(hidden)), dim=1),
        "self_attn.q_proj": drawn(q, hidden),
        "self_attn.k_proj": drawn(kv, hidden),
        "self_attn.v_proj": drawn(kv, hidden),
        "self_attn.o_proj": drawn(hidden, q),
        "mlp.gate_proj": drawn(inner, hidden),
        "mlp.up_proj": drawn(inner, hidden),
        "mlp.down_proj": drawn(hidden, inner),
    }
