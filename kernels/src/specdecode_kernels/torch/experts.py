"""A mixture of experts whose rows do not depend on how many there are."""

from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels.mixture import ExpertRouting, ExpertWeights, GatedActivation
from specdecode_kernels.packed_weights import AnyWeight
from specdecode_kernels.torch.by_row import by_row, computes_by_row
from specdecode_kernels.torch.elementwise import accumulation_dtype, silu_and_mul
from specdecode_kernels.torch.linear import linear

GATHERED_BYTES = 256 << 20
"""Weights that are copied at a time, where experts are not computed one by one."""


def experts(
    hidden: Tensor, routing: ExpertRouting, weights: ExpertWeights, activation: GatedActivation
) -> Tensor:
    """Map [rows, hidden]; on a CPU expert by expert, one BLAS call per row and projection.

    On other devices the weights of every row are gathered, so that the host never waits for the
    ids: the shapes of all calls follow from the number of rows.
    """
    compute = _by_expert if computes_by_row(hidden) else _by_pair
    return combine(compute(hidden, routing.ids, weights, activation), routing.weights)


def combine(outputs: Tensor, weights: Tensor) -> Tensor:
    """Add outputs [rows, top_k, hidden] times weights [rows, top_k], in order and rounded once."""
    dtype = accumulation_dtype(outputs.dtype)
    wide, factors = outputs.to(dtype), weights.to(dtype)
    total = wide[:, 0] * factors[:, :1]
    for place in range(1, outputs.shape[1]):
        total = total + wide[:, place] * factors[:, place : place + 1]
    return total.to(outputs.dtype)


def gate(gate_up: Tensor, activation: GatedActivation) -> Tensor:
    """Activate gate and up [rows, 2 * inner]: [rows, inner]."""
    gates, ups = gate_up.chunk(2, dim=-1)
    if activation.kind == "silu":
        return silu_and_mul(gates, ups)
    dtype = accumulation_dtype(gate_up.dtype)
    gates, ups = gates.to(dtype), ups.to(dtype)
    if activation.kind == "swigluoai":
        gates = gates.clamp(max=activation.limit)
        ups = ups.clamp(-activation.limit, activation.limit) + 1
        activated = gates * by_row(torch.sigmoid, gates * activation.alpha)
    else:
        kind = "tanh" if activation.kind == "gelu_tanh" else "none"
        activated = by_row(partial(functional.gelu, approximate=kind), gates)
    return (activated * ups).to(gate_up.dtype)


def _by_expert(
    hidden: Tensor, ids: Tensor, weights: ExpertWeights, activation: GatedActivation
) -> Tensor:
    gate_up, down = (_plain(one, hidden.dtype) for one in (weights.gate_up, weights.down))
    outputs = hidden.new_empty(*ids.shape, down.shape[1])
    for expert in sorted(set(ids.flatten().tolist())):
        rows, places = torch.where(ids == expert)
        gate_up_bias, down_bias = (
            None if bias is None else bias[expert]
            for bias in (weights.gate_up_bias, weights.down_bias)
        )
        inner = gate(linear(hidden[rows], gate_up[expert], gate_up_bias), activation)
        outputs[rows, places] = linear(inner, down[expert], down_bias)
    return outputs


def _by_pair(
    hidden: Tensor, ids: Tensor, weights: ExpertWeights, activation: GatedActivation
) -> Tensor:
    gate_up, down = (_plain(one, hidden.dtype) for one in (weights.gate_up, weights.down))
    top_k = ids.shape[1]
    each = (gate_up[0].numel() + down[0].numel()) * gate_up.element_size()
    step = max(1, GATHERED_BYTES // (each * top_k))
    parts = []
    for first in range(0, len(hidden), step):
        chosen = ids[first : first + step].flatten().long()
        rows = hidden[first : first + step].repeat_interleave(top_k, dim=0)
        inner = gate(_map_each(rows, gate_up, weights.gate_up_bias, chosen), activation)
        parts.append(_map_each(inner, down, weights.down_bias, chosen))
    mapped = torch.cat(parts) if parts else hidden.new_empty(0, down.shape[1])
    return mapped.view(*ids.shape, down.shape[1])


def _map_each(rows: Tensor, weight: Tensor, bias: Tensor | None, chosen: Tensor) -> Tensor:
    mapped = torch.bmm(weight[chosen], rows[:, :, None])[:, :, 0]
    return mapped if bias is None else mapped + bias[chosen]


def _plain(weight: AnyWeight, dtype: torch.dtype) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight.plain().to(dtype)
