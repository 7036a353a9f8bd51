"""Checkpoints in float8 with the weights of others, as DeepSeek and Qwen publish theirs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checks.lossless.run import Models

FLOAT8_CHECKPOINT = "float8"
"""Of a case: its target, and the draft of STANDALONE, are stored in float8."""
BLOCK = 32
"""Rows and columns that share a scale: the fewest that kernels take."""


def stored_as(models: Models, quantization: str, folder: Path) -> Models:
    """Return the models of a case; checkpoints in float8 are written where the folder lacks them.

    Args:
        quantization: what the case has drawn.
    """
    if quantization != FLOAT8_CHECKPOINT:
        return replace(models, quantization=quantization)
    drafts = dict(models.drafts)
    if "STANDALONE" in drafts:
        drafts["STANDALONE"] = write_float8(drafts["STANDALONE"], folder)
    return replace(models, target=write_float8(models.target, folder), drafts=drafts)


def write_float8(source: Path, folder: Path) -> Path:
    """Write a checkpoint whose projections are float8, next to others of the folder; return it."""
    into = folder / f"{source.name}-float8"
    if into.exists():
        return into
    shutil.copytree(source, into)
    keys = json.loads((into / "config.json").read_text())
    keys["quantization_config"] = {"quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    (into / "config.json").write_text(json.dumps(keys))
    stored = dict[str, Tensor]()
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.endswith("_proj.weight") and tensor.dim() == 2:
            stored[name], stored[f"{name}_scale_inv"] = in_blocks(tensor.float(), BLOCK, BLOCK)
        else:
            stored[name] = tensor
    save_file(stored, into / "model.safetensors", {"format": "pt"})
    return into


def in_blocks(weight: Tensor, rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return float8 and the factor of each block of rows and columns; the last may be smaller."""
    outputs, inputs = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -inputs % columns, 0, -outputs % rows))
    down, across = len(padded) // rows, padded.shape[1] // columns
    tiles = padded.view(down, rows, across, columns)
    scales = tiles.abs().amax((1, 3)) / torch.finfo(torch.float8_e4m3fn).max
    scaled = tiles / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None, :, None]
    float8 = scaled.view(padded.shape)[:outputs, :inputs].to(torch.float8_e4m3fn)
    return float8.contiguous(), scales
