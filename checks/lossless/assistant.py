"""Writes Gemma 4 assistants for any target: random, close to passing hidden states on."""

import json
import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specdecode_engine.model.drafts.frozen_config import ARCHITECTURES
from specdecode_engine.model.implementations import read_config
from specdecode_engine.model.kv.layer_map import FULL, SLIDING, LayerSpec

NOISE = 0.1
"""Of what layers add: drafts agree with the target often enough to accept some."""
INNER = 48
MOST_CENTROIDS = 64


def write_assistant(target: Path, into: Path, *, is_listed: bool = True) -> Path:
    """Write an assistant with a layer for each type of the target's; return its folder.

    Args:
        is_listed: whether the tokens of half of the centroids are scored alone.
    """
    stored = load_file(target / "model.safetensors")
    scores = stored.get("lm_head.weight", stored["model.embed_tokens.weight"]).float()
    config, generator = read_config(target), torch.Generator().manual_seed(0)
    by_type = {
        FULL if one.sliding_window is None else SLIDING: one for one in config.layer_map.layers
    }
    hidden, vocab = config.decoder.hidden_size, config.vocab_size
    heads = math.lcm(*(one.kv_heads for one in by_type.values()))

    def drawn(rows: int, columns: int) -> Tensor:
        scale: float = NOISE * columns**-0.5
        return scale * torch.randn(rows, columns, generator=generator)

    tensors = {
        "pre_projection.weight": torch.cat((drawn(hidden, hidden), torch.eye(hidden)), dim=1),
        "post_projection.weight": torch.eye(hidden) + drawn(hidden, hidden),
        "model.embed_tokens.weight": scores,
        "model.norm.weight": torch.ones(hidden),
    }
    norms = ("post_attention", "pre_feedforward", "post_feedforward")
    for number, one in enumerate(by_type.values()):
        maps = {
            "self_attn.q_proj": (heads * one.k_head_dim, hidden),
            "self_attn.o_proj": (hidden, heads * one.v_head_dim),
            "mlp.gate_proj": (INNER, hidden),
            "mlp.up_proj": (INNER, hidden),
            "mlp.down_proj": (hidden, INNER),
        }
        layer = {f"{name}.weight": drawn(*shape) for name, shape in maps.items()}
        layer |= {f"{name}_layernorm.weight": torch.full((hidden,), NOISE) for name in norms}
        layer["input_layernorm.weight"] = torch.ones(hidden)
        layer["self_attn.q_norm.weight"] = torch.ones(one.k_head_dim)
        layer["layer_scalar"] = torch.tensor([0.9])
        tensors |= {f"model.layers.{number}.{name}": tensor for name, tensor in layer.items()}
    keys: dict[str, object] = {
        "architectures": [ARCHITECTURES[0]],
        "backbone_hidden_size": hidden,
        "text_config": _text_keys(hidden, vocab, heads, by_type),
    }
    if is_listed:
        centroids = _centroids(vocab)
        ordering = torch.randperm(vocab, generator=generator)
        means = scores[ordering].view(centroids, -1, hidden).mean(1)
        tensors["masked_embedding.centroids.weight"] = means
        tensors["masked_embedding.token_ordering"] = ordering
        keys |= {
            "use_ordered_embeddings": True,
            "num_centroids": centroids,
            "centroid_intermediate_top_k": -(-centroids // 2),
        }
    into.mkdir()
    (into / "config.json").write_text(json.dumps(keys))
    save_file(tensors, into / "model.safetensors")
    return into


def _text_keys(
    hidden: int, vocab: int, heads: int, by_type: dict[str, LayerSpec]
) -> dict[str, object]:
    full, sliding = by_type.get(FULL), by_type.get(SLIDING)
    sizes = {one.k_head_dim for one in by_type.values()}
    return {
        "hidden_size": hidden,
        "vocab_size": vocab,
        "intermediate_size": INNER,
        "num_hidden_layers": len(by_type),
        "num_attention_heads": heads,
        "layer_types": list(by_type),
        "head_dim": sliding.k_head_dim if sliding else min(sizes),
        "global_head_dim": full.k_head_dim if full else max(sizes),
        "sliding_window": sliding.sliding_window if sliding else None,
        "hidden_size_per_layer_input": 0,
        "rms_norm_eps": 1e-5,
    }


def _centroids(vocab: int) -> int:
    """Return the most centroids up to a limit that have equally many tokens; else one each."""
    return max((n for n in range(2, MOST_CENTROIDS + 1) if vocab % n == 0), default=vocab)
