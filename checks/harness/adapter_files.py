"""Writes LoRA adapters with random factors, as peft 0.21 saves them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from specdecode_engine.model.target.adapter_base import adapter_base
from specdecode_engine.model.target.config import LlamaConfig

PREFIX = "base_model.model."
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
EVERYWHERE = (*ATTENTION, *MLP, "embed_tokens", "lm_head")
CONFIG: Mapping[str, object] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": {"base_model_class": "LlamaForCausalLM", "parent_library": "transformers"},
    "base_model_name_or_path": "/home/trainer/base",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.05,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 4,
    "rank_pattern": {},
    "revision": None,
    "target_modules": ["q_proj"],
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}
"""Every key that peft 0.21.2 writes."""


def random_factors(
    target: Path, maps: Iterable[str], *, rank: int = 4, seed: int = 0, size: float = 0.3
) -> dict[str, Tensor]:
    """Return factors of all modules of a target whose names end so, by names of peft."""
    base = adapter_base(target, LlamaConfig.load(target), None)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for module, (outputs, inputs) in base.shapes.items():
        if module.rpartition(".")[2] not in maps:
            continue
        is_embedding = module == base.embedding
        a, b = ("lora_embedding_A", "lora_embedding_B") if is_embedding else ("lora_A", "lora_B")
        end = "" if is_embedding else ".weight"
        sizes = (outputs, inputs) if is_embedding else (inputs, outputs)
        for name, shape in ((a, (rank, sizes[0])), (b, (sizes[1], rank))):
            factor = torch.empty(shape).normal_(0, size, generator=generator)
            tensors[f"{PREFIX}{module}.{name}{end}"] = factor
    return tensors


def write_adapter(
    folder: Path, tensors: Mapping[str, Tensor], changes: Mapping[str, object] | None = None
) -> Path:
    """Write an adapter; `changes` are keys of its config with other values than by default."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **(changes or {})}))
    save_file(dict(tensors), folder / "adapter_model.safetensors")
    return folder
