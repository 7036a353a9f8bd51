"""Waits until the device has its memory back from the process before."""

import os
import subprocess
import time
from collections.abc import Callable, Mapping

FREE_WITHIN_S = 8.0
FREE_MIB = 1500


def wait_for_memory(now: Callable[[], float] = time.monotonic) -> None:
    """Wait until little of the first visible GPU is used, or for `FREE_WITHIN_S`."""
    ends_s, query = now() + FREE_WITHIN_S, memory_query(os.environ)
    while now() < ends_s:
        try:
            used = subprocess.run(query, capture_output=True, text=True, timeout=FREE_WITHIN_S)
            if int(used.stdout.split()[0]) < FREE_MIB:
                return
        except (OSError, ValueError, IndexError, subprocess.TimeoutExpired):
            return
        time.sleep(0.2)


def memory_query(variables: Mapping[str, str]) -> list[str]:
    """Return the command that prints the MiB used on the first GPU that a process sees."""
    first = variables.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [*query, f"--id={first}"] if first else query
