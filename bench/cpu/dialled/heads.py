"""Random heads for a target with random weights, with the sizes that published ones have."""

import json
import math
from dataclasses import dataclass
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


def write_heads(
    folder: Path,
    size: Size,
    dtype: torch.dtype = torch.float32,
    device: torch.device | None = None,
) -> dict[str, Path]:
    """Write an EAGLE-3 head and a DFlash draft; return their folders by algorithm.

    Args:
        dtype: of the stored tensors.
        device: where they are drawn, one after another.
    """
    draw = _Draw(dtype, device or torch.device("cpu"))
    return {
        "EAGLE3": _write_eagle3(folder, size, draw),
        "DFLASH": _write_dflash(folder, size, draw),
    }


@dataclass(frozen=True, slots=True)
class _Draw:
    dtype: torch.dtype
    device: torch.device

    def __call__(self, rows: int, columns: int) -> Tensor:
        drawn = torch.randn(rows, columns, device=self.device) / math.sqrt(columns)
        return drawn.to("cpu", self.dtype)


def _write_eagle3(folder: Path, size: Size, draw: _Draw) -> Path:
    hidden, vocab = size.hidden, round(size.vocab * DRAFT_VOCABULARY_SHARE)
    layers_read = [*range(min(size.layers, 3))]
    layer = _layer(size, "midlayer", inputs=2 * hidden, draw=draw)
    tensors = {
        **layer,
        "midlayer.hidden_norm.weight": torch.ones(hidden),
        "fc.weight": draw(hidden, len(layers_read) * hidden),
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": draw(vocab, hidden),
        "d2t": torch.zeros(vocab, dtype=torch.int64),
        "t2d": torch.arange(size.vocab) < vocab,
    }
    read = {"eagle_aux_hidden_state_layer_ids": layers_read}
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": vocab,
        "eagle_config": {**read, "use_aux_hidden_state": True},
    }
    return _write(folder / "eagle3", size, config, tensors)


def _write_dflash(folder: Path, size: Size, draw: _Draw) -> Path:
    hidden, layers = size.hidden, max(1, round(size.layers * DFLASH_LAYERS_PER_TARGET_LAYER))
    read = sorted({round(at * (size.layers - 2) / 4) for at in range(5)})
    tensors = {
        "fc.weight": draw(hidden, len(read) * hidden),
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
    }
    for number in range(layers):
        prefix = f"layers.{number}"
        tensors |= _layer(size, prefix, inputs=hidden, draw=draw)
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


def _layer(size: Size, prefix: str, inputs: int, draw: _Draw) -> dict[str, Tensor]:
    hidden, inner, width = size.hidden, size.intermediate, size.heads * size.head_dim
    keys = size.key_heads * size.head_dim
    return {
        f"{prefix}.input_layernorm.weight": torch.ones(hidden),
        f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden),
        f"{prefix}.self_attn.q_proj.weight": draw(width, inputs),
        f"{prefix}.self_attn.k_proj.weight": draw(keys, inputs),
        f"{prefix}.self_attn.v_proj.weight": draw(keys, inputs),
        f"{prefix}.self_attn.o_proj.weight": draw(hidden, width),
        f"{prefix}.mlp.gate_proj.weight": draw(inner, hidden),
        f"{prefix}.mlp.up_proj.weight": draw(inner, hidden),
        f"{prefix}.mlp.down_proj.weight": draw(hidden, inner),
    }


def _write(folder: Path, size: Size, config: dict[str, object], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(llama_config(size, layers=1) | config))
    save_file(tensors, folder / "model.safetensors")
    return folder
