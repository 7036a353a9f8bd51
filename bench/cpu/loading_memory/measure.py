"""Loads checkpoints, one after the other, and prints the memory that each took, as JSON.

python -m bench.cpu.loading_memory.measure TINY WAYS FOLDER...: ways are `native` or
`transformers`, with `+packed` for packed weights, separated by commas.
"""

import gc
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from specdecode_api.boot import ModelImplementation
from specdecode_engine.model.checkpoint.record_tensors import tensor_bytes
from specdecode_engine.model.implementations import load_model, read_config
from specdecode_engine.model.layers.linears import Linears
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.process import return_freed_tensors
from specdecode_engine.startup.model_check import CheckOptions, check_pair
from specdecode_kernels import choose_backend

CPU = torch.device("cpu")
WAYS = ("native", "native+packed", "transformers", "transformers+packed")


def load(folder: Path, way: str) -> LanguageModel:
    """Load a checkpoint in bfloat16 in one of `WAYS`."""
    name, _, is_packed = way.partition("+")
    implementation: ModelImplementation = "native" if name == "native" else "transformers"
    config = read_config(folder, implementation)
    choice = choose_backend("auto", CPU, torch.bfloat16, config.decoder.head_dim)
    return load_model(
        folder,
        config,
        dtype=torch.bfloat16,
        device=CPU,
        context_length=256,
        progress=None,
        open_store=None,
        linears=Linears.of(choice) if is_packed else Linears(),
    )


def status_bytes(key: str) -> int:
    """Read a size of this process from /proc/self/status."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{key}:"))


def measure(folder: Path, way: str) -> dict[str, Any]:
    """Return the bytes of the model, its files and its plan, and the growth of resident memory."""
    gc.collect()
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts again
    model = load(folder, way)
    peak = status_bytes("VmHWM") - before
    found = {"model": tensor_bytes(model), "peak": peak, "files": files_bytes(folder)}
    return {"format": folder.name, "way": way, "plan": planned_bytes(folder), **found}


def files_bytes(folder: Path) -> int:
    """Return the bytes of the weights' files."""
    return sum(file.stat().st_size for file in folder.iterdir() if file.suffix != ".json")


def planned_bytes(folder: Path) -> int:
    """Return the bytes of weights that `specdecode-engine check` reports."""
    return check_pair(folder, None, CheckOptions(torch.bfloat16)).target.weight_bytes or 0


def main(tiny: Path, ways: Sequence[str], folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Measure each folder in each way, with malloc as the engine has it while it loads.

    Args:
        tiny: a checkpoint of the same type, whose loading imports and compiles everything.
    """
    return_freed_tensors()
    torch.set_num_threads(1)
    found = []
    for way in ways:
        load(tiny, way)
        found += [measure(folder, way) for folder in folders]
    return found


def measured(tiny: Path, ways: Sequence[str], folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return what a process of its own measures."""
    arguments = (str(tiny), ",".join(ways), *map(str, folders))
    command = (sys.executable, "-m", "bench.cpu.loading_memory.measure", *arguments)
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    first, listed, *others = sys.argv[1:]
    print(json.dumps(main(Path(first), listed.split(","), list(map(Path, others)))))
