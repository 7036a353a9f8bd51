"""Recognises parts of a network by what they compute, on random numbers, not by their names."""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

TOLERANCE = 1e-4


class NormKind(NamedTuple):
    """Whether a norm subtracts the mean first, and whether it scales by its weight plus one."""

    is_centred: bool
    adds_one: bool


class MlpNames(NamedTuple):
    """Children of a gated MLP: one map for gate and up, or one each; and the activation, if any."""

    gate_up: tuple[str, ...]
    down: str
    activation: str | None


def recognise_norm(module: nn.Module) -> NormKind | None:
    """Return what a norm computes, None if it is none that we compute."""
    eps = norm_eps(module)
    if eps is None or list(module.children()):
        return None
    probe = with_random_parameters(module)
    x = random_tensor(2, 3, *_norm_shape(module)) + 0.3
    with torch.no_grad():
        computed = _try(probe, x)
        if computed is None:
            return None
        for is_centred in (False, True):
            for adds_one in (False, True):
                kind = NormKind(is_centred, adds_one)
                if is_close(computed, _norm(x, probe._parameters, kind, eps)):
                    return kind
    return None


def norm_eps(module: nn.Module) -> float | None:
    """Return what a norm adds to the variance; None if the module is another part.

    A norm that names no number uses the one of torch's layer norm, 1e-5 (OLMo).
    """
    named = (getattr(module, name, None) for name in ("variance_epsilon", "eps", "epsilon"))
    default = 1e-5 if type(module).__name__.endswith("Norm") else None
    return next((eps for eps in named if isinstance(eps, float)), default)


def _norm_shape(module: nn.Module) -> tuple[int, ...]:
    weight = module._parameters.get("weight")
    if weight is not None:
        return tuple(weight.shape)
    shape = getattr(module, "normalized_shape", None)
    return tuple(shape) if shape else (16,)


def _norm(x: Tensor, parameters: Any, kind: NormKind, eps: float) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True) if kind.is_centred else x
    normed = centred * torch.rsqrt(centred.square().mean(dim=-1, keepdim=True) + eps)
    weight, bias = parameters.get("weight"), parameters.get("bias")
    if weight is not None:
        normed = normed * (weight + 1 if kind.adds_one else weight)
    return normed if bias is None else normed + bias


def recognise_mlp(module: nn.Module, is_silu: Callable[[nn.Module], bool]) -> MlpNames | None:
    """Return the children of a gated MLP with silu, None if the module computes anything else."""
    names = _mlp_names(module, is_silu)
    if names is None:
        return None
    hidden, inner = 8, 12
    sizes = dict.fromkeys(names.gate_up, (hidden, inner))
    if len(names.gate_up) == 1:
        sizes = {names.gate_up[0]: (hidden, 2 * inner)}
    sizes[names.down] = (inner, hidden)
    maps = {name: random_linear(*size) for name, size in sizes.items()}
    probe = with_children(module, maps)
    x = random_tensor(1, 3, hidden)
    with torch.no_grad():
        gate_up = torch.cat([maps[name](x) for name in names.gate_up], dim=-1)
        gate, up = gate_up.chunk(2, dim=-1)
        expected = maps[names.down](nn.functional.silu(gate) * up)
        computed = _try(probe, x)
    return names if computed is not None and is_close(computed, expected) else None


def _mlp_names(module: nn.Module, is_silu: Callable[[nn.Module], bool]) -> MlpNames | None:
    children = dict(module.named_children())
    activation = [name for name, child in children.items() if is_silu(child)]
    maps = {name for name, child in children.items() if isinstance(child, nn.Linear)}
    if maps == children.keys() == {"w1", "w2", "w3"}:
        return MlpNames(("w1", "w3"), "w2", None)
    if len(activation) != 1 or len(children) > len(maps) + 1:
        return None
    for gate_up in (("gate_proj", "up_proj"), ("gate_up_proj",)):
        if maps == {*gate_up, "down_proj"}:
            return MlpNames(gate_up, "down_proj", activation[0])
    return None


def with_random_parameters(module: nn.Module, seed: int = 0) -> nn.Module:
    """Copy a module, with parameters of the same shapes on the CPU."""
    probe = copy.copy(module)
    probe._parameters = {
        name: None
        if parameter is None
        else nn.Parameter(random_tensor(*parameter.shape, seed=seed))
        for name, parameter in module._parameters.items()
    }
    return probe


def with_children(module: nn.Module, children: Mapping[str, nn.Module]) -> nn.Module:
    """Copy a module, with some children of its own."""
    probe = copy.copy(module)
    probe._modules = {**module._modules, **children}
    return probe


def random_linear(inputs: int, outputs: int, seed: int = 0) -> nn.Linear:
    """Return a map with a bias; the same one for the same sizes and seed."""
    linear = nn.Linear(inputs, outputs, device="meta")
    for name, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
        drawn = random_tensor(*shape, seed=seed)
        linear.register_parameter(name, nn.Parameter(drawn, requires_grad=False))
    return linear


def random_tensor(*shape: int, seed: int = 0) -> Tensor:
    """Draw normal numbers, the same ones for the same shape and seed."""
    generator = torch.Generator().manual_seed(sum(shape) + 1_000_003 * seed)
    return torch.randn(shape, generator=generator)


def _try(module: nn.Module, x: Tensor) -> Tensor | None:
    """Compute a module that may want other arguments."""
    try:
        computed = module(x)
    except (TypeError, RuntimeError, ValueError, AttributeError):
        return None
    return computed if isinstance(computed, Tensor) and computed.shape == x.shape else None


def computes(module: nn.Module, rows: Tensor, expected: Callable[[Tensor], Tensor]) -> bool:
    """Whether a module maps hidden states [rows, inputs] as `expected` does, and wants no more."""
    with torch.no_grad():
        try:
            return is_close(module(hidden_states=rows[None])[0], expected(rows))
        except (TypeError, RuntimeError, ValueError, AttributeError, KeyError, IndexError):
            return False


def is_close(computed: Tensor, expected: Tensor) -> bool:
    """Whether two computations agree but for rounding."""
    if computed.shape != expected.shape:
        return False
    return torch.allclose(computed.float(), expected.float(), rtol=TOLERANCE, atol=TOLERANCE)
