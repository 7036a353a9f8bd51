"""Recognises mixtures whose factors multiply what experts read (Llama 4), on random numbers."""

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specdecode_engine.model.layers.experts import Experts
from specdecode_engine.model.layers.linears import Linears, MapKind
from specdecode_engine.model.transformers.mixture_modules import RowInputScaledMixture, RowRouter
from specdecode_engine.model.transformers.recognition import (
    is_close,
    random_linear,
    random_tensor,
    with_children,
)
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_kernels import GatedActivation, RoutingConfig
from specdecode_kernels.mixture import GateKind

CHILDREN = {"router", "experts", "shared_expert"}

_GATES: tuple[GateKind, ...] = ("silu", "gelu_tanh", "gelu")
_ROWS, _WIDTH, _INNER = 8, 16, 12


class InputScaledKind(NamedTuple):
    """How such a mixture chooses experts, and their gate."""

    routing: RoutingConfig
    activation: GatedActivation


class MixtureTensors(NamedTuple):
    """The weights of a mixture, as transformers holds them."""

    router: Tensor  # [experts, hidden]
    gate_up: Tensor  # [experts, hidden, 2 * inner]
    down: Tensor  # [experts, inner, hidden]


def has_input_scaled_parts(module: nn.Module) -> bool:
    """Whether a module has the children of such a mixture, and nothing else in its experts."""
    if {*module._modules} != CHILDREN:
        return False
    experts = module.get_submodule("experts")
    return {*experts._parameters} == {
        "gate_up_proj",
        "down_proj",
    } and not experts._modules.keys() - {"act_fn"}


def tensors_of(module: nn.Module) -> MixtureTensors:
    """Return the weights of a module with these parts."""
    experts = module.get_submodule("experts")
    named = (
        (module.get_submodule("router"), "weight"),
        (experts, "gate_up_proj"),
        (experts, "down_proj"),
    )
    return MixtureTensors(*(one.get_parameter(name).detach() for one, name in named))


def recognise_input_scaled(module: nn.Module) -> InputScaledKind | None:
    """Return what a mixture with these parts computes; None if it is something else."""
    held = tensors_of(module)
    num_experts, top_k = len(held.router), getattr(module, "top_k", None)
    if not isinstance(top_k, int) or not 1 <= top_k <= num_experts:
        return None
    tensors = MixtureTensors(
        random_tensor(num_experts, _WIDTH),
        random_tensor(num_experts, _WIDTH, 2 * _INNER),
        random_tensor(num_experts, _INNER, _WIDTH),
    )
    shared, x = random_linear(_WIDTH, _WIDTH), random_tensor(_ROWS, _WIDTH)
    computed = _compute(module, tensors, shared, x)
    if computed is None:
        return None
    for gate in _GATES:
        routing = RoutingConfig(top_k=top_k, scores="sigmoid_of_top_k")
        kind = InputScaledKind(routing, GatedActivation(gate))
        made = make_input_scaled(Linears(), tensors, kind, shared)
        with torch.no_grad():
            if is_close(made(x)[0], computed):
                return kind
    return None


def make_input_scaled(
    linears: Linears,
    tensors: MixtureTensors,
    kind: InputScaledKind,
    shared: nn.Module,
    ranks: Ranks = ALONE,
) -> RowInputScaledMixture:
    """Make what computes a mixture.

    Args:
        shared: the expert of every row.
        ranks: that have parts of the other experts.
    """
    experts = Experts.make(
        linears,
        tensors.gate_up.transpose(1, 2).contiguous(),
        tensors.down.transpose(1, 2).contiguous(),
        kind.activation,
    )
    linear = linears.make(tensors.router, None, MapKind.ROUTER)
    router = RowRouter(linear, linears.ops, kind.routing, None)
    return RowInputScaledMixture(router, experts, shared, ranks)


def _compute(
    module: nn.Module, tensors: MixtureTensors, shared: nn.Module, x: Tensor
) -> Tensor | None:
    """Compute a module of these weights; None if it wants or returns something else."""
    router, experts = (copy.copy(module.get_submodule(name)) for name in ("router", "experts"))
    router._parameters = {**router._parameters, "weight": nn.Parameter(tensors.router)}
    experts._parameters = {
        "gate_up_proj": nn.Parameter(tensors.gate_up),
        "down_proj": nn.Parameter(tensors.down),
    }
    experts.__dict__["hidden_size"] = _WIDTH
    probe = with_children(module, {"router": router, "experts": experts, "shared_expert": shared})
    probe.__dict__["hidden_dim"] = _WIDTH
    with torch.no_grad():
        try:
            computed: Any = probe(x)
        except (TypeError, RuntimeError, ValueError, AttributeError, IndexError):
            return None
    return computed[0] if isinstance(computed, tuple) and len(computed) == 2 else None
