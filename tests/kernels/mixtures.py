"""Random mixtures of experts for tests of kernels, and what their rows must be."""

import itertools

import torch
from torch import Tensor

from specdecode_kernels import ExpertRouting, ExpertWeights, GatedActivation
from specdecode_kernels.mixture import GateKind

KINDS: tuple[GateKind, ...] = ("silu", "gelu", "gelu_tanh", "swigluoai")
EXPERTS, WIDTH, INNER, TOP_K = 9, 90, 45, 3  # no multiples of a vector


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed))


def draw_weights(
    dtype: torch.dtype, *, has_bias: bool = True, experts: int = EXPERTS
) -> ExpertWeights:
    biases = (normal(experts, 2 * INNER).to(dtype), normal(experts, WIDTH, seed=1).to(dtype))
    return ExpertWeights(
        (normal(experts, 2 * INNER, WIDTH) * WIDTH**-0.5).to(dtype),
        (normal(experts, WIDTH, INNER) * INNER**-0.5).to(dtype),
        *(biases if has_bias else (None, None)),
    )


def draw_routing(rows: int, top_k: int = TOP_K, *, experts: int = EXPERTS) -> ExpertRouting:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:top_k] for _ in range(rows)])
    return ExpertRouting(ids.int(), torch.rand(rows, top_k, generator=generator))


def computed_one_by_one(
    x: Tensor, routing: ExpertRouting, weights: ExpertWeights, activation: GatedActivation
) -> Tensor:
    """Compute each row and expert alone in float64."""
    assert isinstance(weights.gate_up, Tensor)
    assert isinstance(weights.down, Tensor)
    assert weights.gate_up_bias is not None
    assert weights.down_bias is not None
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row, place in itertools.product(*map(range, routing.ids.shape)):
        expert = int(routing.ids[row, place])
        both = weights.gate_up[expert].double() @ x[row].double()
        gate, up = (both + weights.gate_up_bias[expert].double()).chunk(2)
        if activation.kind == "swigluoai":
            gate = gate.clamp(max=activation.limit)
            up = up.clamp(-activation.limit, activation.limit) + 1
            inner = gate * torch.sigmoid(activation.alpha * gate) * up
        elif activation.kind == "silu":
            inner = torch.nn.functional.silu(gate) * up
        else:
            approximate = "tanh" if activation.kind == "gelu_tanh" else "none"
            inner = torch.nn.functional.gelu(gate, approximate=approximate) * up
        mapped = weights.down[expert].double() @ inner + weights.down_bias[expert].double()
        out[row] += float(routing.weights[row, place]) * mapped
    return out
