"""Loads a checkpoint in a process of its own and prints the memory that it took, as JSON.

python -m tests.zoo.loading_memory FOLDER DTYPE
"""

import json
import sys
from pathlib import Path

import torch

from specdecode_engine.model.transformers.config import TransformersConfig
from specdecode_engine.model.transformers.model import TransformersModel
from specdecode_engine.model.weights import tensor_bytes


def load(folder: Path, dtype: torch.dtype) -> TransformersModel:
    config = TransformersConfig.load(folder)
    return TransformersModel.load(config, dtype=dtype, device=torch.device("cpu"))


def status_bytes(key: str) -> int:
    """Read a size of this process from /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def main(tiny: Path, folder: Path, dtype: torch.dtype) -> dict[str, int]:
    """Return the bytes of the model and the greatest growth of resident memory.

    Args:
        tiny: a checkpoint of the same type, whose loading imports and compiles everything.
    """
    torch.set_num_threads(1)
    load(tiny, dtype)
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again
    model = load(folder, dtype)
    return {"model": tensor_bytes(model), "peak": status_bytes("VmHWM") - before}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), getattr(torch, sys.argv[3]))))
