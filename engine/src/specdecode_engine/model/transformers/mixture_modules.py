"""Modules that replace the routers and experts of transformers' mixtures."""

from torch import Tensor, nn

from specdecode_engine.model.layers.experts import Experts
from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.transformers.modules import RowModule
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_kernels import Backend, ExpertRouting, RoutingConfig


class RowExperts(RowModule):
    """The experts of a layer, called as transformers calls them; each rank has a part of each."""

    def __init__(self, experts: Experts, ranks: Ranks = ALONE) -> None:
        super().__init__()
        self.experts = experts
        self.ranks = ranks

    def forward(self, hidden: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        return self.ranks.add(self.experts(hidden, ExpertRouting(ids.int(), weights.float())))


class RowRouter(RowModule):
    """A router whose logits are a linear map, of a type that may be wider than the model's."""

    def __init__(
        self, linear: Linear, ops: Backend, config: RoutingConfig, correction_bias: Tensor | None
    ) -> None:
        super().__init__()
        self.ops = ops
        self.linear = linear
        self.config = config
        self.correction_bias = (
            None if correction_bias is None else nn.Buffer(correction_bias, persistent=False)
        )

    def forward(
        self, hidden: Tensor, correction_bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, factors and experts of rows [..., hidden]."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits = self.linear(rows.to(self.linear.weight.dtype))
        if correction_bias is None:
            correction_bias = self.correction_bias
        routing = self.ops.route_experts(logits, self.config, correction_bias)
        return logits, routing.weights, routing.ids


class RowScaledRouter(RowModule):
    """The router of Gemma 4: a norm, a scale of each input, a map, and a factor of each expert."""

    def __init__(
        self, norm: nn.Module, scale: Tensor, router: RowRouter, expert_scale: Tensor, root: float
    ) -> None:
        super().__init__()
        self.norm = norm
        self.router = router
        self.scale = nn.Buffer(scale, persistent=False)
        self.expert_scale = nn.Buffer(expert_scale.float(), persistent=False)
        self.root = root

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, ids = self.router(self.norm(hidden) * self.scale * self.root)
        return logits, weights * self.expert_scale[ids.long()], ids


class RowInputScaledMixture(RowModule):
    """A mixture whose factors multiply what experts read, not what they return; and an expert that
    every row uses (Llama 4). Each rank has a part of each expert.
    """

    def __init__(
        self, router: RowRouter, experts: Experts, shared: nn.Module, ranks: Ranks = ALONE
    ) -> None:
        super().__init__()
        self.router = router
        self.experts = experts
        self.shared = shared
        self.ranks = ranks

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Map rows [..., hidden] to [rows, hidden]; also return the router's logits."""
        rows = hidden.reshape(-1, hidden.shape[-1])
        logits, weights, ids = self.router(rows)
        routed = self.experts.on_scaled_rows(rows, ExpertRouting(ids, weights))
        return self.shared(rows) + self.ranks.add(routed), logits
