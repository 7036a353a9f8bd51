"""Residual addition and norm in one pass over the rows: the norm's kernel with an update."""

import torch
from torch import Tensor

from specdecode_kernels import launches
from specdecode_kernels.rows import as_rows
from specdecode_kernels.triton.rms_norm import launch


def add_rms_norm(x: Tensor, update: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Launch on x and update [..., dim]; the sum and its norm."""
    launches.count("add_rms_norm", "triton")
    summed = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    normed = torch.empty_like(summed)
    launch(as_rows(x), as_rows(update), weight, eps, summed, normed)
    return summed, normed
