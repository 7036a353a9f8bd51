"""Recognises mixtures whose shared expert has a gate of its own (Qwen2-MoE), on random numbers."""

from typing import Any

import torch
from torch import Tensor, nn

from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.transformers.modules import RowModule
from specdecode_engine.model.transformers.recognition import (
    is_close,
    random_linear,
    random_tensor,
    with_children,
)
from specdecode_kernels.torch.by_row import by_row

CHILDREN = {"gate", "experts", "shared_expert", "shared_expert_gate"}

_ROWS, _WIDTH = 6, 8


class RowSharedGateMixture(RowModule):
    """experts(x) + sigmoid(shared_gate(x)) * shared(x); experts by a router."""

    def __init__(
        self, router: nn.Module, experts: nn.Module, shared: nn.Module, shared_gate: Linear
    ) -> None:
        super().__init__()
        self.router = router
        self.experts = experts
        self.shared = shared
        self.shared_gate = shared_gate

    def forward(self, hidden: Tensor) -> Tensor:
        """Map rows [..., hidden]."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        _, weights, ids = self.router(rows)
        share = by_row(torch.sigmoid, self.shared_gate(rows))
        mixed: Tensor = self.experts(rows, ids, weights) + share * self.shared(rows)
        return mixed.view(hidden.shape)


class _ProbeRouter(nn.Module):
    """Returns what the experts are to be called with."""

    def __init__(self) -> None:
        super().__init__()
        self.routing = random_tensor(_ROWS, 2), random_tensor(_ROWS, 2).argsort(dim=1)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return rows, *self.routing


class _ProbeExperts(nn.Module):
    """Returns NaN for another routing than the router's."""

    def __init__(self, router: _ProbeRouter) -> None:
        super().__init__()
        self.map = random_linear(_WIDTH, _WIDTH, seed=1)
        self.router = router

    def forward(self, rows: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        wanted_weights, wanted_ids = self.router.routing
        is_given = torch.equal(ids, wanted_ids) and torch.equal(weights, wanted_weights)
        mapped: Tensor = self.map(rows)
        return mapped if is_given else mapped * torch.nan


def has_shared_expert_gate(module: nn.Module) -> bool:
    """Whether a module has the children of such a mixture, and computes what ours does."""
    if {*module._modules} != CHILDREN:
        return False
    router = _ProbeRouter()
    experts, shared = _ProbeExperts(router), random_linear(_WIDTH, _WIDTH, seed=2)
    gate = random_linear(_WIDTH, 1)
    probe = with_children(
        module,
        {"gate": router, "experts": experts, "shared_expert": shared, "shared_expert_gate": gate},
    )
    rows = random_tensor(1, _ROWS, _WIDTH)
    with torch.no_grad():
        wanted = experts.map(rows) + torch.sigmoid(gate(rows)) * shared(rows)
        try:
            computed: Any = probe(rows)
        except (TypeError, RuntimeError, ValueError, AttributeError, IndexError):
            return False
    return isinstance(computed, Tensor) and is_close(computed, wanted)
