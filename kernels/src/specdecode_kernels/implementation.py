"""Which implementation of an op computes: plain torch, or a Triton kernel.

Triton serves tensors on a CUDA device; float64 stays with torch, it is there to be exact and not to
be fast. The variable `SPECDECODE_KERNELS` (torch or triton) forces one of the two, for tests under
Triton's interpreter and to look for a fault.
"""

import importlib.util
import os
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Implementation = Literal["torch", "triton"]
VARIABLE = "SPECDECODE_KERNELS"


def implementation_for(tensor: Tensor) -> Implementation:
    """Say which implementation treats `tensor`, by its device and type alone."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted not in ("", "torch", "triton"):
        raise ValueError(f"{VARIABLE}={wanted!r} names no implementation: set torch or triton")
    if wanted == "torch" or tensor.dtype == torch.float64:
        return "torch"
    if wanted == "triton" or (tensor.is_cuda and _has_triton()):
        return "triton"
    return "torch"


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
