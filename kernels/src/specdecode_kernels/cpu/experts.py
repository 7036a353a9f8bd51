"""Launcher of the experts of a mixture on packed weights."""

import ctypes

import torch
from torch import Tensor

from specdecode_kernels.cpu.library import Library
from specdecode_kernels.mixture import ExpertRouting, ExpertWeights, GatedActivation, GateKind
from specdecode_kernels.packed_weights import PackedWeight
from specdecode_kernels.torch import experts as reference

KINDS: tuple[GateKind, ...] = ("silu", "gelu", "gelu_tanh", "swigluoai")
"""In the order of experts.c."""

_Sizes, _Gate = ctypes.c_long * 6, ctypes.c_float * 2


def experts(
    library: Library,
    hidden: Tensor,
    routing: ExpertRouting,
    weights: ExpertWeights,
    activation: GatedActivation,
) -> Tensor:
    """Launch where both projections are packed; plain ones go to torch."""
    gate_up, down = weights.gate_up, weights.down
    if not isinstance(gate_up, PackedWeight) or not isinstance(down, PackedWeight):
        return reference.experts(hidden, routing, weights, activation)
    hidden = hidden if hidden.stride(1) == 1 else hidden.contiguous()
    ids, factors = routing.ids.contiguous(), routing.weights.contiguous()
    rows, top_k = ids.shape
    num_experts, width, inner = down.shape
    out = torch.empty(rows, width, dtype=hidden.dtype)
    scratch = torch.empty(rows * top_k * (width + 2 * inner), dtype=hidden.dtype)
    sizes = _Sizes(rows, top_k, num_experts, width, inner, KINDS.index(activation.kind))
    settings = _Gate(activation.alpha, activation.limit)
    order = torch.empty(num_experts + 1 + 5 * rows * top_k, dtype=torch.int64)
    library.experts(
        gate_up.address,
        _address(weights.gate_up_bias),
        down.address,
        _address(weights.down_bias),
        hidden.data_ptr(),
        hidden.stride(0),
        ids.data_ptr(),
        factors.data_ptr(),
        out.data_ptr(),
        scratch.data_ptr(),
        order.data_ptr(),
        ctypes.addressof(sizes),
        ctypes.addressof(settings),
    )
    return out


def _address(bias: Tensor | None) -> int | None:
    """The address of a bias, which is contiguous: see `ExpertWeights`."""
    return None if bias is None else bias.data_ptr()
