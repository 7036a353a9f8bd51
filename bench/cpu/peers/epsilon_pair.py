"""A target and a draft with random weights whose agreement is a dial.

The draft is the target's first layer under the same embedding, norm and head. Every further layer
of the target writes into the residual stream scaled by epsilon: at 0 the two agree always, and the
larger it is the less. Nothing has to be trained, and any size can be made. Weights are such that
float16 and bfloat16 hold them exactly, so whoever stores them so has the same model, and the end
of an answer is never the likeliest token.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from bench.cpu.peers.byte_vocabulary import BOS_ID, EOS_ID, write_tokenizer

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
    kv_heads: int | None = None  # as many as heads where None
    inner: int | None = None  # four times the width where None

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def intermediate(self) -> int:
        """Width inside the MLP."""
        return self.inner or 4 * self.hidden

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def parameters(self) -> int:
        """Of the target, embedding included."""
        return self.streamed + self.vocab * self.hidden

    @property
    def streamed(self) -> int:
        """Weights of matrices that every decoded token reads: all but the embedding."""
        attention = 2 * self.hidden * (self.hidden + self.key_heads * self.head_dim)
        layer = attention + 3 * self.hidden * self.intermediate
        return self.layers * layer + self.vocab * self.hidden


SIZE_82M = Size(12, 768, heads=12, kv_heads=4, inner=2048)
"""82 million parameters: small enough to build in seconds, too large for a processor's cache."""


def write_pair(folder: Path, size: Size, epsilon: float, seed: int = 0) -> tuple[Path, Path]:
    """Write both checkpoints in Hugging Face's format; return the folders of target and draft."""
    tensors = dict(_tensors(size, torch.Generator().manual_seed(seed)))
    for name in tensors:
        is_first = name.startswith("model.layers.0.")
        if not is_first and name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = tensors[name] * epsilon
    tensors = {name: _in_half_width(tensor) for name, tensor in tensors.items()}
    tensors["lm_head.weight"][EOS_ID] = 0.0  # its logit is 0: others are always above
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
    hidden, inner = size.hidden, size.intermediate
    rows = {"k_proj": size.key_heads * size.head_dim, "v_proj": size.key_heads * size.head_dim}
    yield "model.embed_tokens.weight", _random(generator, size.vocab, hidden, 1.0)
    yield "model.norm.weight", torch.ones(hidden)
    for number in range(size.layers):
        prefix = f"model.layers.{number}"
        yield f"{prefix}.input_layernorm.weight", torch.ones(hidden)
        yield f"{prefix}.post_attention_layernorm.weight", torch.ones(hidden)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield (
                f"{prefix}.self_attn.{name}.weight",
                _random(generator, rows.get(name, hidden), hidden),
            )
        yield f"{prefix}.mlp.gate_proj.weight", _random(generator, inner, hidden)
        yield f"{prefix}.mlp.up_proj.weight", _random(generator, inner, hidden)
        yield f"{prefix}.mlp.down_proj.weight", _random(generator, hidden, inner)
    yield "lm_head.weight", _random(generator, size.vocab, hidden)


def _random(generator: torch.Generator, rows: int, columns: int, scale: float = 0.0) -> Tensor:
    """Normal values that keep the size of what they are multiplied with."""
    return torch.randn(rows, columns, generator=generator) * (scale or columns**-0.5)


def _in_half_width(tensor: Tensor) -> Tensor:
    return tensor.bfloat16().half().float()


def llama_config(size: Size, layers: int) -> dict[str, object]:
    """Return the keys of a config.json that describe layers of this size."""
    return {
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.key_heads,
        "head_dim": size.head_dim,
        "vocab_size": size.vocab,
        "max_position_embeddings": size.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }


def _write(folder: Path, size: Size, layers: int, tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config = llama_config(size, layers) | {
        "architectures": ["LlamaForCausalLM"],
        "bos_token_id": BOS_ID,
        "eos_token_id": EOS_ID,
    }
    write_tokenizer(folder, size.vocab, size.context)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, str(folder / "model.safetensors"))
    return folder
