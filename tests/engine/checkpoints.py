"""Tiny random checkpoints in Hugging Face's layout, from fixed seeds."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from checks.lossless.assistant import write_assistant
from checks.lossless.block_drafts import save_dflash, save_dspark, save_peagle
from checks.lossless.mtp_module import write_mtp_modules
from tests.engine.mtp_checkpoints import export_module

VOCAB = 97
EOS = 5
DRAFT_VOCAB = 60
HIDDEN = 64
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 16
CHAIN = 3
"""Modules of a chain."""


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """A random target, a standalone draft close to it, and random heads for it."""

    target: Path
    draft: Path
    eagle3: Path
    eagle: Path
    mtp: Path
    mtp_chain: Path
    frozen_kv_mtp: Path
    dflash: Path
    dspark: Path
    peagle: Path
    vocab: int = VOCAB


def make_checkpoints(folder: Path, head_dim: int = HEAD_DIM) -> Checkpoints:
    """Write all checkpoints below an existing folder."""
    generator = torch.Generator().manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=HIDDEN,
            intermediate_size=96,
            num_hidden_layers=3,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            head_dim=head_dim,
            max_position_embeddings=512,
            tie_word_embeddings=False,
            bos_token_id=1,
            eos_token_id=EOS,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.06, generator=generator)
    model.save_pretrained(folder / "target")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.empty_like(parameter).normal_(0, 0.003, generator=generator))
    model.save_pretrained(folder / "draft")
    _save_eagle3(folder / "eagle3", generator, head_dim)
    _save_eagle(folder / "eagle", generator, head_dim)
    save_dflash(folder / "dflash", folder / "target")
    save_dspark(folder / "dspark", folder / "target")
    save_peagle(folder / "peagle", folder / "eagle3")
    return Checkpoints(
        folder / "target",
        folder / "draft",
        eagle3=folder / "eagle3",
        eagle=folder / "eagle",
        mtp=export_module(folder / "target", folder / "mtp"),
        frozen_kv_mtp=write_assistant(folder / "target", folder / "frozen_kv_mtp"),
        mtp_chain=write_mtp_modules(folder / "target", folder / "mtp_chain", CHAIN),
        dflash=folder / "dflash",
        dspark=folder / "dspark",
        peagle=folder / "peagle",
    )


def cut_vocabulary(source: Path, folder: Path, vocab: int) -> Path:
    """Write a language model without the tokens from `vocab` on; return its folder."""
    folder.mkdir()
    keys = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**keys, "vocab_size": vocab}))
    tensors = load_file(source / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = tensors[name][:vocab].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _save_eagle3(folder: Path, generator: torch.Generator, head_dim: int) -> None:
    folder.mkdir()
    q_width, kv_width = HEADS * head_dim, KV_HEADS * head_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape).normal_(0, 0.2, generator=generator)

    ids = torch.sort(torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB]).values
    norms = ("hidden_norm", "input_layernorm", "post_attention_layernorm")
    tensors = {
        **{f"midlayer.{name}.weight": torch.ones(HIDDEN) for name in norms},
        "fc.weight": random(HIDDEN, 3 * HIDDEN),
        "midlayer.self_attn.q_proj.weight": random(q_width, 2 * HIDDEN),
        "midlayer.self_attn.k_proj.weight": random(kv_width, 2 * HIDDEN),
        "midlayer.self_attn.v_proj.weight": random(kv_width, 2 * HIDDEN),
        "midlayer.self_attn.o_proj.weight": random(HIDDEN, q_width),
        "midlayer.mlp.gate_proj.weight": random(96, HIDDEN),
        "midlayer.mlp.up_proj.weight": random(96, HIDDEN),
        "midlayer.mlp.down_proj.weight": random(HIDDEN, 96),
        "norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random(DRAFT_VOCAB, HIDDEN),
        "d2t": ids - torch.arange(DRAFT_VOCAB),
        "t2d": torch.zeros(VOCAB, dtype=torch.bool).index_fill(0, ids, True),
    }
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
            "use_aux_hidden_state": True,
        },
    }
    (folder / "config.json").write_text(json.dumps(config))


def _save_eagle(folder: Path, generator: torch.Generator, head_dim: int) -> None:
    folder.mkdir()
    q_width, kv_width = HEADS * head_dim, KV_HEADS * head_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape).normal_(0, 0.2, generator=generator)

    tensors = {
        "fc.weight": random(HIDDEN, 2 * HIDDEN),
        "layers.0.post_attention_layernorm.weight": torch.ones(HIDDEN),
        "layers.0.self_attn.q_proj.weight": random(q_width, HIDDEN),
        "layers.0.self_attn.k_proj.weight": random(kv_width, HIDDEN),
        "layers.0.self_attn.v_proj.weight": random(kv_width, HIDDEN),
        "layers.0.self_attn.o_proj.weight": random(HIDDEN, q_width),
        "layers.0.mlp.gate_proj.weight": random(96, HIDDEN),
        "layers.0.mlp.up_proj.weight": random(96, HIDDEN),
        "layers.0.mlp.down_proj.weight": random(HIDDEN, 96),
    }
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLMEagle"],
        "bias": False,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": head_dim,
        "num_hidden_layers": 1,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(config))
