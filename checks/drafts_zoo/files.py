"""Reads and writes the tensors of one-file checkpoints: safetensors, or a pickle of torch."""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from checks.drafts_zoo.slow_layers import Tensors
from specdecode_engine.model.checkpoint.checkpoint import SINGLE
from specdecode_engine.model.checkpoint.pickle_store import PICKLE


def write_checkpoint(
    folder: Path, keys: Mapping[str, object], tensors: Tensors, *, is_pickle: bool = False
) -> Path:
    """Write config.json and the tensors; return the folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(keys))
    write_tensors(folder / (PICKLE if is_pickle else SINGLE), tensors)
    return folder


def tensor_file(folder: Path) -> Path:
    """Return the file of a folder's tensors."""
    single = folder / SINGLE
    return single if single.exists() else folder / PICKLE


def read_tensors(folder: Path) -> Tensors:
    """Read all tensors of a folder."""
    file = tensor_file(folder)
    return load_file(file) if file.name == SINGLE else torch.load(file, weights_only=True)


def write_tensors(file: Path, tensors: Tensors) -> None:
    """Write tensors in the format of the file's name."""
    if file.name == SINGLE:
        contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
        save_file(contiguous, file, metadata={"format": "pt"})
    else:
        torch.save(tensors, file)
