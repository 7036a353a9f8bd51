"""Random drafts of blocks for any target, since no trained one is among the examples."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

LAYERS = 2
BLOCK = 11
INNER = 96
RANK = 8


Tensors = dict[str, torch.Tensor]


def save_dflash(
    folder: Path, target: Path, *, others: Tensors | None = None, **keys: object
) -> None:
    """Write a random DFlash draft.

    Args:
        target: folder of its target, whose sizes it has.
        others: further tensors.
        keys: replace those of its config.json.
    """
    sizes = json.loads((target / "config.json").read_text())
    sizes = sizes.get("text_config", sizes)
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape).normal_(0, 0.2, generator=generator)

    folder.mkdir()
    heads, kv_heads, head_dim = 4, 2, 16
    hidden, vocab = sizes["hidden_size"], sizes["vocab_size"]
    read = [0, sizes["num_hidden_layers"] - 2]
    tensors = {
        "fc.weight": random(hidden, len(read) * hidden),
        "hidden_norm.weight": 1 + random(hidden),
        "norm.weight": 1 + random(hidden),
    }
    for layer in range(LAYERS):
        shapes = {
            "self_attn.q_proj": (heads * head_dim, hidden),
            "self_attn.k_proj": (kv_heads * head_dim, hidden),
            "self_attn.v_proj": (kv_heads * head_dim, hidden),
            "self_attn.o_proj": (hidden, heads * head_dim),
            "mlp.gate_proj": (INNER, hidden),
            "mlp.up_proj": (INNER, hidden),
            "mlp.down_proj": (hidden, INNER),
        }
        norms = {
            "input_layernorm": hidden,
            "post_attention_layernorm": hidden,
            "self_attn.q_norm": head_dim,
            "self_attn.k_norm": head_dim,
        }
        tensors |= {f"layers.{layer}.{name}.weight": random(*s) for name, s in shapes.items()}
        tensors |= {f"layers.{layer}.{name}.weight": 1 + random(n) for name, n in norms.items()}
    save_file({**tensors, **(others or {})}, folder / "model.safetensors")
    config = {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": hidden,
        "intermediate_size": INNER,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "num_hidden_layers": LAYERS,
        "vocab_size": vocab,
        "max_position_embeddings": sizes["max_position_embeddings"],
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "block_size": BLOCK,
        "dflash_config": {"mask_token_id": vocab - 1, "target_layer_ids": read},
    }
    (folder / "config.json").write_text(json.dumps({**config, **keys}))


def save_dspark(folder: Path, target: Path, kind: str = "rnn", **keys: object) -> None:
    """Write the draft of `save_dflash` with a random Markov head of this kind."""
    sizes = json.loads((target / "config.json").read_text())
    sizes = sizes.get("text_config", sizes)
    hidden, vocab = sizes["hidden_size"], sizes["vocab_size"]
    generator = torch.Generator().manual_seed(1)
    shapes: dict[str, tuple[int, ...]] = {
        "markov_head.markov_w1.weight": (vocab, RANK),
        "markov_head.markov_w2.weight": (vocab, RANK),
        "confidence_head.proj.weight": (1, hidden + RANK),
        "confidence_head.proj.bias": (1,),
    }
    if kind == "gated":
        shapes["markov_head.gate_proj.weight"] = (RANK, hidden + RANK)
        shapes["markov_head.gate_proj.bias"] = (RANK,)
    elif kind == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * RANK, 2 * RANK + hidden)
        shapes["markov_head.joint_proj.bias"] = (3 * RANK,)
    others = {
        name: torch.empty(shape).normal_(0, 0.5, generator=generator)
        for name, shape in shapes.items()
    }
    config: dict[str, object] = {
        "architectures": ["Qwen3DSparkModel"],
        "markov_rank": RANK,
        "markov_head_type": kind,
        "enable_confidence_head": True,
    }
    save_dflash(folder, target, others=others, **{**config, **keys})


def save_peagle(folder: Path, head: Path, **keys: object) -> None:
    """Write an EAGLE-3 head with a random hidden state for masks.

    Args:
        keys: replace those of its config.json.
    """
    tensors = load_file(head / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    width = tensors["fc.weight"].shape[1]
    tensors["mask_hidden"] = torch.empty(1, width).normal_(0, 1, generator=generator)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((head / "config.json").read_text())
    own = {"ptd_token_id": config["vocab_size"] - 1, "para_num": BLOCK}
    (folder / "config.json").write_text(json.dumps({**config, **own, **keys}))
