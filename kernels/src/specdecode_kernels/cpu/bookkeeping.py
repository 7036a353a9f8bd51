"""Launchers of what a step computes of tokens and positions."""

import torch
from torch import Tensor

from specdecode_kernels.cpu.library import Library


def verify_chain(library: Library, choices: Tensor, drafted: Tensor) -> Tensor:
    choices, drafted = (x if x.stride(1) == 1 else x.contiguous() for x in (choices, drafted))
    batch, count = drafted.shape
    accepted = torch.empty(batch, dtype=torch.int64)
    library.verify_chain(
        choices.data_ptr(),
        choices.stride(0),
        drafted.data_ptr(),
        drafted.stride(0),
        accepted.data_ptr(),
        batch,
        count,
    )
    return accepted
