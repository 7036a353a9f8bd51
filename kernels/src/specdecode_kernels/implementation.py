"""Which implementation of an op computes: plain torch, a Triton kernel, or one in C.

Triton serves tensors on a CUDA device, C those on a CPU; float64 stays with torch, it is there to
be exact and not to be fast. The variable `SPECDECODE_KERNELS` (torch, triton or native) forces one
of them, for tests under Triton's interpreter and to look for a fault; a type that the forced one
does not have stays with torch.
"""

import importlib.util
import os
from functools import cache
from typing import Literal, get_args

import torch
from torch import Tensor

from specdecode_kernels import native

Implementation = Literal["torch", "triton", "native"]
VARIABLE = "SPECDECODE_KERNELS"


def implementation_for(tensor: Tensor) -> Implementation:
    """Say which implementation treats `tensor`, by its device and type alone."""
    wanted = forced()
    if wanted == "torch" or tensor.dtype == torch.float64:
        return "torch"
    if wanted == "triton" or (not wanted and tensor.is_cuda and _has_triton()):
        return "triton"
    if tensor.is_cpu and native.obstacle(tensor.dtype) is None:
        return "native"
    return "torch"


def forced() -> Implementation | None:
    """Say which implementation the variable asks for, if any.

    Raises:
        ValueError: it names none.
    """
    wanted = os.environ.get(VARIABLE, "")
    if not wanted:
        return None
    for name in get_args(Implementation):
        if wanted == name:
            return name  # type: ignore[no-any-return]
    raise ValueError(f"{VARIABLE}={wanted!r} names no implementation: set torch, triton or native")


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None
