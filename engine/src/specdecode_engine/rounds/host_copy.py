"""Copies of results to the host that the host does not wait for."""

import torch
from torch import Tensor


def start_copy(tensor: Tensor) -> Tensor:
    """Start to copy a tensor to pinned memory; what a CPU computed is at hand already.

    The copy may be read once an event that is recorded behind it has been reached.
    """
    if not tensor.is_cuda:
        return tensor
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return pinned.copy_(tensor, non_blocking=True)
