"""Damages every tensor of a draft: each time the loader must raise an error that names it."""

import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from checks.drafts_zoo.engines import boot_of
from checks.drafts_zoo.files import read_tensors, tensor_file, write_tensors
from checks.drafts_zoo.format import DraftFiles, DraftFormat
from checks.drafts_zoo.slow_layers import Tensors
from specdecode_engine.model.checkpoint.config_file import CheckpointError
from specdecode_engine.startup.build import build_core


def deleted(tensors: Tensors, name: str) -> Tensors:
    """Leave a tensor out."""
    return {other: tensor for other, tensor in tensors.items() if other != name}


def renamed(tensors: Tensors, name: str) -> Tensors:
    """Give a tensor another name."""
    return {**deleted(tensors, name), f"{name}_old": tensors[name]}


def reshaped(tensors: Tensors, name: str) -> Tensors:
    """Add a row to a tensor."""
    tensor = tensors[name]
    return {**tensors, name: torch.cat((tensor, torch.zeros_like(tensor[:1])))}


FAULTS: tuple[Callable[[Tensors, str], Tensors], ...] = (deleted, renamed, reshaped)


def find_unnamed_fault(form: DraftFormat, files: DraftFiles, scratch: Path) -> str | None:
    """Damage every tensor of the draft in every way; return the first that no error names.

    Args:
        scratch: a folder that does not exist yet.
    """
    source = files.draft or files.target
    shutil.copytree(source, scratch)
    damaged = DraftFiles(files.target, scratch) if files.draft else DraftFiles(scratch)
    tensors = read_tensors(source)
    for name in filter(form.is_of_draft, tensors):
        for fault in FAULTS:
            write_tensors(tensor_file(scratch), fault(tensors, name))
            error = _loading_error(form, damaged)
            if error is None and fault is deleted and name in form.optional:
                continue
            if error is None:
                return f"{name} was {fault.__name__}, and the draft was loaded"
            if name not in error:
                return f"{name} was {fault.__name__}, and the error does not name it: {error}"
    return None


def _loading_error(form: DraftFormat, files: DraftFiles) -> str | None:
    try:
        build_core(boot_of(form, files))
    except CheckpointError as error:
        return str(error)
    return None
