"""The processor that measures, and the environment of worker processes."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def processor_model() -> str:
    """Name the processor as the kernel does."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def worker_environment(outer: Mapping[str, str], paths: Sequence[str]) -> dict[str, str]:
    """One thread, no network, and only these folders to import from."""
    return {
        **outer,
        **dict.fromkeys(_ONE_THREAD, "1"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TOKENIZERS_PARALLELISM": "false",
        "NNCF_CI": "1",  # no telemetry
        "PYTHONPATH": os.pathsep.join(paths),
    }
