"""A target and a draft with random weights whose agreement is a dial.

The draft is the target's first layer under the same embedding, norm and head. Every further layer
of the target writes into the residual stream scaled by epsilon: at 0 the two agree always, and the
larger it is the less. Nothing has to be trained, and any size can be made.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

WEAK = 0.1
STRONG = 0.02


@dataclass(frozen=True, slots=True)
class Size:
    """Shape of the target; the draft has one layer."""

    layers: int
    hidden: int
    vocab: int = 4096
    heads: int = 8
    context: int = 1024


def write_pair(folder: Path, size: Size, epsilon: float, seed: int = 0) -> tuple[Path, Path]:
    """Write both checkpoints in Hugging Face's format; return the folders of target and draft."""
    tensors = dict(_tensors(size, torch.Generator().manual_seed(seed)))
    for name in tensors:
        is_first = name.startswith("model.layers.0.")
        if not is_first and name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = tensors[name] * epsilon
    draft = {
        name: tensor
        for name, tensor in tensors.items()
        if not name.startswith("model.layers.") or name.startswith("model.layers.0.")
    }
    return (
        _write(folder / "target", size, size.layers, tensors),
        _write(folder / "draft", size, 1, draft),
    )


def _tensors(size: Size, generator: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    hidden, inner = size.hidden, 4 * size.hidden
    yield "model.embed_tokens.weight", _random(generator, size.vocab, hidden, 1.0)
    yield "model.norm.weight", torch.ones(hidden)
    for number in range(size.layers):
        prefix = f"model.layers.{number}"
        yield f"{prefix}.input_layernorm.weight", torch.ones(hidden)
        yield f"{prefix}.post_attention_layernorm.weight", torch.ones(hidden)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield f"{prefix}.self_attn.{name}.weight", _random(generator, hidden, hidden)
        yield f"{prefix}.mlp.gate_proj.weight", _random(generator, inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", _random(generator, inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", _random(generator, hidden, inner)
    yield "lm_head.weight", _random(generator, size.vocab, hidden)


def _random(generator: torch.Generator, rows: int, columns: int, scale: float = 0.0) -> Tensor:
    """Normal values that keep the size of what they are multiplied with."""
    return torch.randn(rows, columns, generator=generator) * (scale or columns**-0.5)


def _write(folder: Path, size: Size, layers: int, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": 4 * size.hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "head_dim": size.hidden // size.heads,
        "vocab_size": size.vocab,
        "max_position_embeddings": size.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"))
    return folder
