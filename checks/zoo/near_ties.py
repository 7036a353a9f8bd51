"""Texts for which a router of transformers nearly chooses other experts: rounding may decide."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

MOVE = 1e-3
"""By how much of itself every number that a router reads is moved, on average."""

DRAWS = 4


class NearTies:
    """Computes every router again on inputs that are moved a little."""

    def __init__(self) -> None:
        self.found = False  # some row had other experts

    @contextmanager
    def watching(self, network: nn.Module) -> Iterator[None]:
        """Watch all routers of a network; one without routers has no near ties."""
        routers = [one for one in network.modules() if "Router" in type(one).__name__]
        handles = [one.register_forward_hook(self._compare) for one in routers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _compare(self, router: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        x, *others = inputs
        for draw in range(DRAWS):  # the same for every row: a row stays safe in a longer text
            noise = torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(draw))
            moved = router.forward(x * (1 + noise * MOVE), *others)
            self.found |= not torch.equal(_chosen(moved), _chosen(output))


def _chosen(output: tuple[Tensor, ...]) -> Tensor:
    """The experts of each row in ascending order; Llama 4's router returns scores, 0 elsewhere."""
    for part in output:
        if not part.is_floating_point():
            return part.sort(dim=-1).values
    return output[0] > 0
