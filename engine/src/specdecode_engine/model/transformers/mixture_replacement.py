"""Replaces the routers and experts of a network's mixtures."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from specdecode_engine.model.layers.experts import Experts, gates_first
from specdecode_engine.model.layers.layers import Linear
from specdecode_engine.model.layers.linears import Linears, MapKind
from specdecode_engine.model.transformers.input_scaled_mixture import (
    has_input_scaled_parts,
    make_input_scaled,
    recognise_input_scaled,
    tensors_of,
)
from specdecode_engine.model.transformers.mixture_modules import (
    RowExperts,
    RowInputScaledMixture,
    RowRouter,
    RowScaledRouter,
)
from specdecode_engine.model.transformers.mixture_recognition import (
    RouterKind,
    has_scales,
    is_router,
    named_tensors,
    recognise_experts,
    recognise_router,
    recognise_scaled_router,
    router_numbers,
)
from specdecode_engine.model.transformers.shared_expert_gate import (
    RowSharedGateMixture,
    has_shared_expert_gate,
)
from specdecode_engine.ranks import Ranks
from specdecode_kernels import TORCH

Replace = Callable[[nn.Module], nn.Module | None]


class MixtureReplacer:
    """Replaces modules of one network; a kind of router is recognised once."""

    def __init__(
        self,
        linears: Linears,
        dtype: torch.dtype,
        replace_norm: Replace,
        replace_mlp: Replace,
        take_ranks: Callable[[nn.Module], Ranks],
    ) -> None:
        self._linears = linears
        self._dtype = dtype
        self._replace_norm = replace_norm
        self._replace_mlp = replace_mlp
        self._take_ranks = take_ranks  # that have parts of experts
        self._routers: dict[tuple[object, ...], RouterKind | None] = {}

    def replacement(self, module: nn.Module) -> nn.Module | None:
        """Return what replaces a router, the experts or the mixture of a layer, None for others."""
        if has_input_scaled_parts(module):
            return self._input_scaled(module)
        if has_shared_expert_gate(module):
            return self._shared_gate(module)
        if is_router(module):
            return self._scaled_router(module) if has_scales(module) else self._router(module)
        return self._experts(module)

    def _router(self, module: nn.Module) -> RowRouter | None:
        shapes = (tuple(p.shape) for p in module.parameters())
        key = (type(module), *shapes)
        if key not in self._routers:
            self._routers[key] = recognise_router(module)
        kind = self._routers[key]
        return None if kind is None else self._make_router(module, kind)

    def _make_router(self, module: nn.Module, kind: RouterKind) -> RowRouter:
        names, stored = router_numbers(module), named_tensors(module)
        assert names is not None
        weight, bias, correction = (
            None if name is None else stored[name].detach() for name in names
        )
        assert weight is not None
        if (kind.is_wide and weight.dtype.itemsize < 4) or weight.dtype != self._dtype:
            # The C kernels are for the model's type.
            linear = Linear(TORCH, weight.float(), None if bias is None else bias.float())
        else:
            linear = self._linears.make(weight, bias, MapKind.ROUTER)
        if correction is not None:
            correction = correction.flatten() if kind.has_correction else None
        return RowRouter(linear, self._linears.ops, kind.config, correction)

    def _scaled_router(self, module: nn.Module) -> RowScaledRouter | None:
        kind = recognise_scaled_router(module)
        norm = self._replace_norm(module.get_submodule("norm"))
        scale, expert_scale = _detached(module, "scale"), _detached(module, "per_expert_scale")
        if kind is None or norm is None or scale is None or expert_scale is None:
            return None
        router = self._make_router(module.get_submodule("proj"), kind)
        return RowScaledRouter(norm, scale, router, expert_scale, len(scale) ** -0.5)

    def _shared_gate(self, module: nn.Module) -> RowSharedGateMixture | None:
        router = self._router(module.get_submodule("gate"))
        shared = self._replace_mlp(module.get_submodule("shared_expert"))
        experts = self._experts(module.get_submodule("experts"))
        gate = module.get_submodule("shared_expert_gate")
        weight = _detached(gate, "weight")
        if router is None or shared is None or experts is None or weight is None:
            return None
        shared_gate = self._linears.make(weight, _detached(gate, "bias"), MapKind.ROUTER)
        return RowSharedGateMixture(router, experts, shared, shared_gate)

    def _input_scaled(self, module: nn.Module) -> RowInputScaledMixture | None:
        kind = recognise_input_scaled(module)
        shared = self._replace_mlp(module.get_submodule("shared_expert"))
        if kind is None or shared is None:
            return None
        ranks = self._take_ranks(module.get_submodule("experts"))
        return make_input_scaled(self._linears, tensors_of(module), kind, shared, ranks)

    def _experts(self, module: nn.Module) -> RowExperts | None:
        kind = recognise_experts(module)
        if kind is None:
            return None
        gate_up, down = _detached(module, "gate_up_proj"), _detached(module, "down_proj")
        bias = _detached(module, "gate_up_proj_bias")
        assert gate_up is not None
        assert down is not None
        if kind.is_transposed:
            gate_up, down = gate_up.transpose(1, 2), down.transpose(1, 2)
        if kind.is_interleaved:
            gate_up, bias = gates_first(gate_up), None if bias is None else gates_first(bias)
        ranks = self._take_ranks(module)
        experts = Experts.make(
            self._linears,
            gate_up.contiguous(),
            down.contiguous(),
            kind.activation,
            gate_up_bias=bias,
            down_bias=None if ranks.rank else _detached(module, "down_proj_bias"),
        )
        return RowExperts(experts, ranks)


def _detached(module: nn.Module, name: str) -> Tensor | None:
    parameter = module._parameters.get(name)
    return None if parameter is None else parameter.detach()
