"""Fits a tiny draft to a few texts, so that enough of its tokens are accepted."""

from collections.abc import Callable

import torch
from torch import Tensor

from checks.drafts_zoo.slow_layers import Tensors


def fit(
    tensors: Tensors, loss: Callable[[Tensors], Tensor], *, steps: int = 60, rate: float = 1e-2
) -> Tensors:
    """Minimize a loss with Adam over the floating tensors; return tensors of the same types.

    Args:
        loss: of float64 tensors under the names of `tensors`.
    """
    learned = {
        name: tensor.double().requires_grad_()
        for name, tensor in tensors.items()
        if tensor.is_floating_point()
    }
    optimizer = torch.optim.Adam(learned.values(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss({**tensors, **learned}).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    fitted = {name: tensor.detach().to(tensors[name].dtype) for name, tensor in learned.items()}
    return {**tensors, **fitted}
