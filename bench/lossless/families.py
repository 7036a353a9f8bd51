"""Checkpoints of other families with the weights of a Llama, so that drafts made for it still fit.

Each differs from Llama in what is its own: Qwen3 in norms of query and key heads.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]
Keys = dict[str, Any]

LLAMA = "llama"
HEAD_NORM = 2.0
"""Mean weight of q_norm and k_norm: it makes attention about as sharp as in the trained Llama."""


def make_family(family: str, llama: Path, into: Path) -> Path:
    """Write a checkpoint of `family` with the weights of the checkpoint `llama`; return it."""
    into.mkdir(parents=True)
    for file in llama.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, into)
    keys = json.loads((llama / "config.json").read_text())
    tensors = load_file(llama / "model.safetensors")
    architecture, change = _CHANGES[family]
    keys |= {"architectures": [architecture], "model_type": family}
    change(keys, tensors, torch.Generator().manual_seed(0))
    (into / "config.json").write_text(json.dumps(keys))
    save_file(tensors, into / "model.safetensors")
    return into


def _to_qwen3(keys: Keys, tensors: Tensors, generator: torch.Generator) -> None:
    """Norms of query and key heads."""
    dtype = tensors["model.norm.weight"].dtype
    for number in range(keys["num_hidden_layers"]):
        for part in "qk":
            drawn = _normal(keys["head_dim"], dtype, generator)
            name = f"model.layers.{number}.self_attn.{part}_norm.weight"
            tensors[name] = HEAD_NORM + 0.2 * drawn


def _normal(count: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.randn(count, generator=generator).to(dtype)


_CHANGES: Mapping[str, tuple[str, Callable[[Keys, Tensors, torch.Generator], None]]] = {
    "qwen3": ("Qwen3ForCausalLM", _to_qwen3),
}
FAMILIES = (LLAMA, *_CHANGES)
