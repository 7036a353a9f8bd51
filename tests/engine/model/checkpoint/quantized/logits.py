"""Logits of one text by quantized checkpoints, and by transformers on plain weights."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from specdecode_api.boot import ModelImplementation
from specdecode_engine.model.checkpoint.quantized.store import open_checkpoint
from specdecode_engine.model.implementations import load_model, read_config
from specdecode_engine.model.layers.linears import Linears

CPU = torch.device("cpu")


@torch.no_grad()
def our_logits(
    folder: Path, implementation: ModelImplementation, texts: Any, ids: Tensor
) -> Tensor:
    config = read_config(folder, implementation)
    model = load_model(
        folder,
        config,
        dtype=torch.float32,
        device=CPU,
        context_length=32,
        progress=None,
        open_store=open_checkpoint,
        linears=Linears(),
    )
    positions, view = texts.make(config, 1, len(ids), 4).view((0, 0, len(ids)))
    return model.logits(model.forward(ids, positions, view)[0])


@torch.no_grad()
def transformers_logits(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model.eval()(ids[None]).logits[0]
    return logits


def plain_logits(folder: Path, weights: Mapping[str, Tensor], ids: Tensor) -> Tensor:
    """Logits of transformers on a checkpoint's dequantized weights."""
    config = LlamaConfig.from_pretrained(folder)
    del config.quantization_config
    model: Any = LlamaForCausalLM(config)
    model.load_state_dict(weights)
    return transformers_logits(model, ids)


def plain_weights(folder: Path) -> dict[str, Tensor]:
    """What the engine reads, in float32."""
    store = open_checkpoint(folder)
    plain = {name: torch.empty(one.shape) for name, one in store.tensors.items()}
    for name, weight in plain.items():
        store.read(name, weight)
    return plain
