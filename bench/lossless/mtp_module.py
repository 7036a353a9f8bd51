"""Writes the export of an MTP module for a target: random, close to passing hidden states on."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

NOISE = 0.1
"""Of what the layer adds: drafts agree with the target often enough to accept some."""


def write_mtp_module(target: Path, into: Path) -> Path:
    """Write a module in DeepSeek's layout with the sizes of a Llama's layer; return its folder."""
    keys = json.loads((target / "config.json").read_text())
    keys |= {"architectures": ["LlamaForCausalLMNextN"], "num_hidden_layers": 1}
    into.mkdir(parents=True)
    (into / "config.json").write_text(json.dumps(keys))
    generator = torch.Generator().manual_seed(0)
    hidden, inner = keys["hidden_size"], keys["intermediate_size"]
    head_dim = keys.get("head_dim") or hidden // keys["num_attention_heads"]
    q, kv = (keys[f"num_{kind}_heads"] * head_dim for kind in ("attention", "key_value"))

    def drawn(rows: int, columns: int) -> Tensor:
        scale: float = NOISE * columns**-0.5
        return scale * torch.randn(rows, columns, generator=generator)

    ones = ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm")
    tensors = {
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
    named = {f"model.layers.0.{name}.weight": one for name, one in tensors.items()}
    save_file(named, into / "model.safetensors")
    return into
