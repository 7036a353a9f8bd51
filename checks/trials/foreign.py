"""Makes a draft that fits its target in every number and was trained for another vocabulary."""

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

WEIGHTS = "model.safetensors"
HEAD = "lm_head.weight"


def write_foreign_draft(source: Path, folder: Path) -> None:
    """Copy a draft and shuffle the rows of its head, so that it hardly ever predicts a token.

    Args:
        source: folder of a checkpoint whose head is its own.
        folder: where to; what it holds is replaced.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    weights = load_file(source / WEIGHTS)
    order = torch.randperm(weights[HEAD].shape[0], generator=torch.Generator().manual_seed(1))
    weights[HEAD] = weights[HEAD][order].contiguous()
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    for path in (folder, *folder.iterdir()):  # pods read it under a user of their own
        path.chmod(0o755 if path.is_dir() else 0o644)
