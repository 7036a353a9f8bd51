"""Recognises routers and experts by what they compute, on random numbers."""

import copy
import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from specdecode_engine.model.layers.experts import gates_first
from specdecode_engine.model.transformers.recognition import is_close, random_linear, random_tensor
from specdecode_kernels import TORCH, ExpertRouting, GatedActivation, RoutingConfig
from specdecode_kernels.mixture import GateKind, Scores
from specdecode_kernels.torch.experts import gate

WIDTH = 16  # of random rows
ROWS = 8

SCALES = ("routed_scaling_factor", "router_scaling_factor", "route_scale")
"""Attributes of routers with a factor of all weights."""

_SCORES: tuple[Scores, ...] = ("softmax", "softmax_of_top_k", "sigmoid", "sparsemixer")
_GATES: tuple[GateKind, ...] = ("silu", "gelu_tanh", "gelu", "swigluoai")


class RouterKind(NamedTuple):
    """How a router chooses experts."""

    config: RoutingConfig
    is_wide: bool = False  # its logits are float32 in a narrower model
    has_correction: bool = False  # its buffer is added to scores for the choice


class RouterNumbers(NamedTuple):
    """Where a router keeps its numbers: names of parameters and buffers, of children too."""

    weight: str  # [experts, hidden]
    bias: str | None
    correction: str | None  # one number for each expert, added to scores for the choice


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and buffers of a module and of its children."""
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def is_router(module: nn.Module) -> bool:
    """Whether a module may be one, by the name that transformers gives it."""
    name = type(module).__name__
    return "Router" in name or name.endswith("Gate")


def router_numbers(module: nn.Module) -> RouterNumbers | None:
    """Find the numbers of a router that is one linear map, None if there are others."""
    stored = named_tensors(module)
    maps = [name for name, child in module.named_children() if type(child) is nn.Linear]
    prefix = f"{maps[0]}." if maps else ""
    weight, bias = f"{prefix}weight", f"{prefix}bias"
    if weight not in stored or stored[weight].dim() != 2:
        return None
    others = stored.keys() - {weight, bias}
    if len(others) > 1 or any(stored[n].numel() != len(stored[weight]) for n in others):
        return None
    return RouterNumbers(weight, bias if bias in stored else None, next(iter(others), None))


class _FixedNorm(nn.Module):
    """Stands for a norm that is recognised elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 3.0 + 0.5


class ExpertsKind(NamedTuple):
    """The gate of experts, and how their weights lie."""

    activation: GatedActivation
    is_interleaved: bool
    is_transposed: bool


def recognise_router(module: nn.Module) -> RouterKind | None:
    """Return what a router of one linear map computes, None if nothing of ours."""
    numbers = router_numbers(module)
    if numbers is None:
        return None
    num_experts = len(module.get_parameter(numbers.weight))
    correction = random_tensor(num_experts, 1)[:, 0]
    weight, bias = random_tensor(num_experts, WIDTH), None
    given = {numbers.weight: weight}
    if numbers.bias is not None:
        given[numbers.bias] = bias = random_tensor(num_experts)
    if numbers.correction is not None:
        given[numbers.correction] = correction
    probe = copy.copy(module)
    probe.__dict__["hidden_dim"] = WIDTH
    x = random_tensor(ROWS, WIDTH)
    computed = _routed(probe, given, x, correction)
    if computed is None:
        return None
    linear = nn.functional.linear(x, weight, bias)
    for config in _configs(module, computed[1].ids.shape[1], num_experts):
        for added in (None, correction):
            if _is_same(TORCH.route_experts(linear, config, added), computed[1], num_experts):
                is_held = added is not None and numbers.correction is not None
                return RouterKind(config, _is_wide(probe, given, x, correction), is_held)
    return None


def has_scales(module: nn.Module) -> bool:
    """Whether a router has the parts of Gemma 4's: a norm, a map and two scales."""
    names = {"scale", "per_expert_scale"}
    return {*module._modules} == {"norm", "proj"} and {*module._parameters} == names


def recognise_scaled_router(module: nn.Module) -> RouterKind | None:
    """Return how a router with Gemma 4's parts chooses experts, None if it computes otherwise."""
    proj: Any = module.get_submodule("proj")
    num_experts, hidden = proj.weight.shape
    probe = copy.copy(module)
    scale, expert_scale = random_tensor(hidden, 1)[:, 0], random_tensor(num_experts, 1)[:, 0]
    probe._parameters = {
        "scale": nn.Parameter(scale),
        "per_expert_scale": nn.Parameter(expert_scale),
    }
    map_rows = random_linear(hidden, num_experts)
    probe._modules = {"norm": _FixedNorm(), "proj": map_rows}
    x = random_tensor(ROWS, hidden)
    computed = _routed(probe, {}, x, scale)
    if computed is None:
        return None
    routing = computed[1]
    logits = map_rows(_FixedNorm()(x) * scale * hidden**-0.5)
    for config in _configs(module, routing.ids.shape[1], num_experts):
        ids, weights = TORCH.route_experts(logits, config, None)
        if _is_same(ExpertRouting(ids, weights * expert_scale[ids.long()]), routing, num_experts):
            return RouterKind(config)
    return None


def recognise_experts(module: nn.Module) -> ExpertsKind | None:
    """Return the kind of experts that transformers' experts interface describes.

    The decorator of transformers' interface sets the attributes; what `_apply_gate` computes is
    found on random numbers.
    """
    if not getattr(module, "has_gate", False) or getattr(module, "has_post_expert_norm", False):
        return None
    if any(name not in module._parameters for name in ("gate_up_proj", "down_proj")):
        return None
    found = recognise_gate(module)
    if found is None:
        return None
    return ExpertsKind(*found, bool(module.is_transposed))


def recognise_gate(module: Any) -> tuple[GatedActivation, bool] | None:
    """Return what `_apply_gate` computes, and whether gate and up are interleaved."""
    x = random_tensor(ROWS, 2 * WIDTH) * 6  # far enough for limits
    with torch.no_grad():
        try:
            computed = module._apply_gate(x)
        except (TypeError, RuntimeError, AttributeError):
            return None
    alpha, limit = (getattr(module, name, 0.0) or 0.0 for name in ("alpha", "limit"))
    for kind, is_interleaved in itertools.product(_GATES, (False, True)):
        activation = GatedActivation(kind)
        if kind == "swigluoai":
            activation = GatedActivation(kind, float(alpha), float(limit))
        rows = gates_first(x[:, :, None])[..., 0] if is_interleaved else x
        if computed.shape == (ROWS, WIDTH) and is_close(computed, gate(rows, activation)):
            return activation, is_interleaved
    return None


def _configs(module: nn.Module, top_k: int, num_experts: int) -> Iterator[RoutingConfig]:
    scales = {1.0, *(float(getattr(module, name, None) or 1.0) for name in SCALES)}
    groups = getattr(module, "num_group", None) or getattr(module, "n_group", None) or 1
    top_groups = getattr(module, "topk_group", None) or 1
    jitter = float(getattr(module, "router_jitter_noise", 0.0) or 0.0)
    for scores, is_normalized, scale in itertools.product(_SCORES, (True, False), scales):
        if is_normalized and scores in ("softmax_of_top_k", "sparsemixer"):
            continue  # which have no sum to divide by
        yield RoutingConfig(
            top_k=top_k,
            scores=scores,
            is_normalized=is_normalized,
            scale=scale,
            num_groups=groups if num_experts % groups == 0 else 1,
            top_groups=top_groups,
            jitter=jitter,
        )


def _routed(
    probe: nn.Module, numbers: Mapping[str, Tensor], x: Tensor, correction: Tensor
) -> tuple[Tensor, ExpertRouting] | None:
    """Compute logits and routing of a router that may want the correction as an argument.

    Args:
        numbers: parameters and buffers in place of its own.
    """
    for arguments in ((x,), (x, correction), (x[None], correction)):
        with torch.no_grad():
            try:
                computed = torch.func.functional_call(probe, dict(numbers), arguments)
            except (TypeError, RuntimeError, ValueError, AttributeError, IndexError):
                continue
        if isinstance(computed, tuple) and len(computed) == 3:
            logits, weights, ids = computed
            if weights.shape == ids.shape and not ids.is_floating_point():
                return logits, ExpertRouting(ids, weights)
    return None


def _is_wide(
    probe: nn.Module, numbers: Mapping[str, Tensor], x: Tensor, correction: Tensor
) -> bool:
    """Whether the logits of bfloat16 rows are float32."""
    narrow = {name: number.bfloat16() for name, number in numbers.items()}
    computed = _routed(probe, narrow, x.bfloat16(), correction)
    return computed is not None and computed[0].dtype == torch.float32


def _is_same(routing: ExpertRouting, other: ExpertRouting, num_experts: int) -> bool:
    """Whether both choose the same experts with the same factors, in any order."""
    dense = [
        torch.zeros(ROWS, num_experts).scatter(1, ids.long(), weights.float())
        for ids, weights in (routing, other)
    ]
    chosen = [
        torch.zeros(ROWS, num_experts).scatter(1, ids.long(), 1.0) for ids, _ in (routing, other)
    ]
    return torch.equal(*chosen) and is_close(*dense)
