"""Random heads for a target with random weights, with the sizes that published ones have."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.cpu.peers.epsilon_pair import Size, llama_config

BLOCK = 16
DFLASH_LAYERS_PER_TARGET_LAYER = 5 / 36
"""Of z-lab's drafts for Qwen3."""
DRAFT_VOCABULARY_SHARE = 0.25
"""Of the target's vocabulary in EAGLE-3 heads of Llama 3: 32,000 of 128,256 tokens."""


def write_heads(folder: Path, size: Size) -> dict[str, Path]:
    """Write an EAGLE-3 head and a DFlash draft; return their folders by algorithm."""
    return {"EAGLE3": _write_eagle3(folder, size), "DFLASH": _write_dflash(folder, size)}


def _write_eagle3(folder: Path, size: Size) -> Path:
    hidden, vocab = size.hidden, round(size.vocab * DRAFT_VOCABULARY_SHARE)
    layer = _layer(size, "midlayer", inputs=2 * hidden)
    tensors = {
        **layer,
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "fc.weight": _random(hidden, 3 * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": _random(vocab, hidden),
        "d2t": torch.zeros(vocab, dtype=torch.int64),
        "t2d": torch.arange(size.vocab) < vocab,
    }
    read = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": vocab,
        "eagle_config": {**read, "use_aux_hidden_state": True},
    }
    return _write(folder / "eagle3", size, config, tensors)


def _write_dflash(folder: Path, size: Size) -> Path:
    hidden, layers = size.hidden, round(size.layers * DFLASH_LAYERS_PER_TARGET_LAYER)
    read = sorted({round(at * (size.layers - 2) / 4) for at in range(5)})
    tensors = {
        "fc.weight": _random(hidden, len(read) * hidden),
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
    }
    for number in range(layers):
        prefix = f"layers.{number}"
        tensors |= _layer(size, prefix, inputs=hidden)
        for name in ("q_norm", "k_norm"):
            tensors[f"{prefix}.self_attn.{name}.weight"] = torch.ones(size.head_dim)
    method = {"mask_token_id": size.vocab - 1, "target_layer_ids": read}
    config = {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": layers,
        "block_size": BLOCK,
        "dflash_config": method,
    }
    return _write(folder / "dflash", size, config, tensors)


def _layer(size: Size, prefix: str, inputs: int) -> dict[str, Tensor]:
    hidden, inner, width = size.hidden, size.intermediate, size.heads * size.head_dim
    keys = size.key_heads * size.head_dim
    return {
        f"{prefix}.input_layernorm.weight": torch.ones(hidden),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden),
        f"{prefix}.self_attn.q_proj.weight": _random(width, inputs),
        f"{prefix}.self_attn.k_proj.weight": _random(keys, inputs),
        f"{prefix}.self_attn.v_proj.weight": _random(keys, inputs),
        f"{prefix}.self_attn.o_proj.weight": _random(hidden, width),
        f"{prefix}.mlp.gate_proj.weight": _random(inner, hidden),
        f"{prefix}.mlp.up_proj.weight": _random(inner, hidden),
        f"{prefix}.mlp.down_proj.weight": _random(hidden, inner),
    }


def _random(rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns) / math.sqrt(columns)


def _write(folder: Path, size: Size, config: dict[str, object], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama_config(size, layers=1) | config))
    save_file(tensors, folder / "model.safetensors")
    return folder
