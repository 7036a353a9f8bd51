"""Programmatic dependent launch of small kernels: one begins while the kernel before it ends.

Each kernel that takes part waits (`gdc_wait`) before it touches memory that others write, and lets
its successor begin at once. The wait ends when all earlier kernels have completed and their writes
are visible, so order and results stay those of plain launches. Compute capability 9.0 and later.
It is off until a GPU has shown equal results and a gain (`bench/gpu/queue.toml`, entry `launches`).
"""

import os
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra import cuda

PDL_VARIABLE = "SPECDECODE_PDL"
HOPPER = (9, 0)

_is_on = False


def read_switch(device: torch.device) -> None:
    """Switch dependent launches on or off, as the environment sets it.

    Raises:
        ValueError: the variable is 1 on a device without them, or neither 0 nor 1.
    """
    wanted = os.environ.get(PDL_VARIABLE, "0")
    if wanted not in ("0", "1"):
        raise ValueError(f"{PDL_VARIABLE}={wanted!r} is neither 0 nor 1")
    has_it = device.type == "cuda" and torch.cuda.get_device_capability(device) >= HOPPER
    if wanted == "1" and not has_it:
        raise ValueError(
            f"{PDL_VARIABLE}=1 needs a GPU of compute capability 9.0 or later; unset it"
        )
    switch(is_on=wanted == "1")


def switch(*, is_on: bool) -> None:
    """Choose for all launches that follow, in the whole process."""
    global _is_on
    _is_on = is_on


def launch_options() -> dict[str, Any]:
    """Return the options of a launch, for a kernel with a constant PDL."""
    return {"PDL": True, "launch_pdl": True} if _is_on else {"PDL": False}


@triton.jit
def wait_for_writes(PDL: tl.constexpr):
    """Wait for the kernels before this one, and let the next one begin."""
    if PDL:
        cuda.gdc_wait()
        cuda.gdc_launch_dependents()
