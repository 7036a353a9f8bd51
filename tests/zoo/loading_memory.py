"""Loads checkpoints, one after the other, and prints the memory that each took, as JSON.

python -m tests.zoo.loading_memory DTYPE TINY FOLDER...
"""

import gc
import json
import sys
from pathlib import Path

import torch

from specdecode_engine.model.transformers.config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.model.weights import tensor_bytes
from specdecode_engine.process import return_freed_tensors


def load(folder: Path, dtype: torch.dtype) -> TransformersModel:
    config = TransformersConfig.load(folder)
    return TransformersModel.load(config, dtype=dtype, device=torch.device("cpu"))


def status_bytes(key: str) -> int:
    """Read a size of this process from /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def measure(folder: Path, dtype: torch.dtype) -> dict[str, int]:
    """Return the bytes of the model and the greatest growth of resident memory."""
    gc.collect()
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again
    model = load(folder, dtype)
    return {"model": tensor_bytes(model), "peak": status_bytes("VmHWM") - before}


def main(dtype: torch.dtype, tiny: Path, folders: list[Path]) -> dict[str, dict[str, int]]:
    """Measure each folder, with malloc as the engine has it while it loads.

    Args:
        tiny: a checkpoint of the same type, whose loading imports and compiles everything.
    """
    return_freed_tensors()
    torch.set_num_threads(1)
    load(tiny, dtype)
    return {folder.name: measure(folder, dtype) for folder in folders}


if __name__ == "__main__":
    paths = [Path(path) for path in sys.argv[2:]]
    print(json.dumps(main(getattr(torch, sys.argv[1]), paths[0], paths[1:])))
