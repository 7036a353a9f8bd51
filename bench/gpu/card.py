"""The GPU of this machine, found by a process that is gone before anything is measured."""

import subprocess
import sys
from dataclasses import dataclass

PROBE = "import torch; print(torch.cuda.get_device_name())"
PROBE_LIMIT_S = 90


@dataclass(frozen=True, slots=True)
class FoundCard:
    """The name of the GPU; without one it is empty, and `reason` contains why."""

    name: str = ""
    reason: str = ""


def find_card() -> FoundCard:
    """Look for a GPU that torch can use."""
    command = [sys.executable, "-c", PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_LIMIT_S)
    except subprocess.TimeoutExpired:
        return FoundCard(reason=f"torch did not answer within {PROBE_LIMIT_S} s")
    if done.returncode:
        return FoundCard(reason=(done.stderr.strip() or "no output").splitlines()[-1])
    return FoundCard(done.stdout.strip().splitlines()[-1])
