"""Checkpoints of random weights: in shards, as a pickle, in float8 and float4."""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.lossless.published import as_published
from specdecode_engine.model.checkpoint.pickle_store import PICKLE

Write = Callable[[Path, Path], None]
"""From a folder with shards, and the folder to write."""


def write_shards(folder: Path, model_type: str, sizes: Mapping[str, object], shard: str) -> None:
    """Write a model in bfloat16, its published tensors one by one."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    auto: Any = AutoModelForCausalLM
    config = AutoConfig.for_model(model_type, **sizes)
    with no_init_weights():
        model = auto.from_config(config, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.uniform_(-0.02, 0.02, generator=generator)
    model.save_pretrained(folder, max_shard_size=shard)


def load_shards(folder: Path) -> dict[str, Tensor]:
    """Read all tensors of a folder."""
    files = sorted(folder.glob("*.safetensors"))
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def write_pickle(shards: Path, folder: Path) -> None:
    """Write the tensors as one pickle."""
    folder.mkdir()
    shutil.copy(shards / "config.json", folder)
    torch.save(load_shards(shards), folder / PICKLE)


def write_float8(shards: Path, folder: Path) -> None:
    """Store the linear maps of layers in float8, with one scale for each."""
    folder.mkdir()
    keys = json.loads((shards / "config.json").read_text())
    keys["quantization_config"] = {"quant_method": "fp8"}
    (folder / "config.json").write_text(json.dumps(keys))
    tensors = load_shards(shards)
    for name in [name for name in tensors if name.endswith("_proj.weight")]:
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)
        tensors[f"{name}_scale_inv"] = torch.ones(1)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_float4(shards: Path, folder: Path, *, name: str) -> None:
    """Store the linear maps of layers in MXFP4 or NVFP4, as compressed-tensors does."""
    folder.mkdir()
    config, tensors = as_published(load_shards(shards), name)
    keys = json.loads((shards / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(keys | {"quantization_config": config}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


FORMATS: Mapping[str, Write] = {
    "pickle": write_pickle,
    "float8": write_float8,
    "mxfp4": partial(write_float4, name="mxfp4"),
    "nvfp4": partial(write_float4, name="nvfp4"),
}
"""What is made of shards."""
