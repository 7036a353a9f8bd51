"""The experts of a mixture: pairs of a row and an expert are sorted by expert, so that a program
loads weights once for a block of them.

A row's sums are the same whatever it is computed with: the tile depends on the type alone, every
output is one sum over the inputs in their order, and outputs are added in the order of the row's
ids. Source of the sorting into blocks of one expert: `fused_moe` of vLLM; here the gate is part of
the first product, which halves what is written between them.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import as_rows
from specdecode_kernels.mixture import ExpertRouting, ExpertWeights, GatedActivation
from specdecode_kernels.packed_weights import PackedWeight
from specdecode_kernels.triton.quantized_tiles import (
    add_products,
    finished,
    tile_arguments,
    tile_inputs,
)
from specdecode_kernels.triton.sort_pairs import PairBlocks, sort_pairs
from specdecode_kernels.triton.tiles import dot_type
from specdecode_kernels.weights import QuantizedTensor

COLUMNS = 1024
INPUTS_OF_FLOAT8 = 32
"""Of a tile: its conversion takes registers that two sums of a gated product leave to no more."""


@dataclass(frozen=True, slots=True)
class ExpertTile:
    """What one program of a product holds, and how it is run."""

    rows: int
    outputs: int  # two sums each where the product is gated
    inputs: int  # at a time
    warps: int
    stages: int


def expert_tile(itemsize: int, *, is_gated: bool) -> ExpertTile:
    """Choose by type alone: instructions for few rows and for many may add in another order.

    64 rows of 16 bits take fewer products than tensor cores do while memory delivers the weights
    of a block, so that a decode step, with a row or two for each expert, is no slower by it.
    """
    outputs = 64 if is_gated else 128
    if itemsize == 2:
        return ExpertTile(rows=64, outputs=outputs, inputs=64, warps=4, stages=3)
    return ExpertTile(rows=16, outputs=outputs // 2, inputs=32, warps=4, stages=3)


@triton.jit(do_not_specialize=("pairs",))
def _map_pairs_kernel(
    x_ptr,
    values_ptr,  # [experts, outputs, inputs], twice the outputs where gated
    scales_ptr,
    zeros_ptr,
    factors_ptr,
    bias_ptr,
    out_ptr,  # [pairs, outputs]
    pairs_ptr,
    experts_ptr,
    used_ptr,
    stride_x,
    pairs,
    sharing,  # pairs that share a row of x
    outputs,
    inputs,
    half,  # this, groups, group and SCALES: see `add_products`
    groups,
    group,
    alpha,
    limit,
    FORMAT: tl.constexpr,  # of a quantized weight
    SCALES: tl.constexpr,
    GATE: tl.constexpr,  # kind of the gate, None where the product has none
    DOT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    block = tl.program_id(1)
    if block >= tl.load(used_ptr):
        return
    expert = tl.load(experts_ptr + block).to(tl.int64)
    pair = tl.load(pairs_ptr + block * ROWS + tl.arange(0, ROWS))[:, None]
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_output = (output < outputs)[None, :]
    x_at = x_ptr + (pair // sharing).to(tl.int64) * stride_x
    row = expert * (outputs if GATE is None else 2 * outputs) + output[None, :]
    sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
    ups = tl.zeros([ROWS, OUTPUTS], tl.float32)
    for start in range(0, inputs, INPUTS):
        at = start + tl.arange(0, INPUTS)[None, :]
        x = tl.load(x_at + at, mask=(pair < pairs) & (at < inputs), other=0.0).to(DOT)
        sums = add_products(
            sums, x, values_ptr, scales_ptr, zeros_ptr, factors_ptr, row, start, is_output, inputs,
            half, groups, group, FORMAT, SCALES, DOT,
        )  # fmt: skip
        if GATE is not None:
            ups = add_products(
                ups, x, values_ptr, scales_ptr, zeros_ptr, factors_ptr, row + outputs, start,
                is_output, inputs, half, groups, group, FORMAT, SCALES, DOT,
            )  # fmt: skip
    sums = finished(sums, factors_ptr, bias_ptr, row, is_output)
    if GATE is not None:
        ups = finished(ups, factors_ptr, bias_ptr, row + outputs, is_output)
        sums = _gate(sums, ups, alpha, limit, GATE)
    out_at = out_ptr + pair.to(tl.int64) * outputs + output[None, :]
    tl.store(out_at, sums.to(out_ptr.dtype.element_ty), mask=(pair < pairs) & is_output)


@triton.jit
def _gate(gate, up, alpha, limit, KIND: tl.constexpr):
    # Comparisons instead of minima: they keep NaN.
    if KIND == "silu":
        return gate / (1.0 + tl.exp(-gate)) * up
    if KIND == "gelu":
        return 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476)) * up
    if KIND == "gelu_tanh":
        cubic = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate)
        return gate * (1.0 - 1.0 / (tl.exp(2.0 * cubic) + 1.0)) * up  # tanh(x) = 1 - 2 / (e^2x + 1)
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    return gate / (1.0 + tl.exp(-alpha * gate)) * (up + 1.0)


@triton.jit
def _combine_kernel(
    outputs_ptr,  # [rows, top_k, width]
    factors_ptr,  # [rows, top_k] f32
    out_ptr,
    top_k,
    width,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < width
    total = tl.zeros([COLUMNS], tl.float32)
    for place in range(top_k):
        pair = row * top_k + place
        output = tl.load(outputs_ptr + pair * width + column, mask=is_column, other=0.0)
        total += output.to(tl.float32) * tl.load(factors_ptr + pair)
    tl.store(out_ptr + row * width + column, total.to(out_ptr.dtype.element_ty), mask=is_column)


def experts(
    hidden: Tensor, routing: ExpertRouting, weights: ExpertWeights, activation: GatedActivation
) -> Tensor:
    """Sort, map to gated rows, map back, and add: four launches, whatever the routing."""
    gate_up, down = weights.gate_up, weights.down
    assert not isinstance(gate_up, PackedWeight)  # there is no `pack_weight`
    assert not isinstance(down, PackedWeight)
    num_experts, width, inner = down.shape
    rows, top_k = routing.ids.shape
    out = torch.empty(rows, width, dtype=hidden.dtype, device=hidden.device)
    if not rows:
        return out
    blocks = sort_pairs(
        routing.ids.contiguous(),
        num_experts,
        expert_tile(hidden.element_size(), is_gated=True).rows,
    )
    gated = hidden.new_empty(rows * top_k, inner)
    _map_pairs(as_rows(hidden), top_k, gate_up, weights.gate_up_bias, gated, blocks, activation)
    outputs = hidden.new_empty(rows * top_k, width)
    _map_pairs(gated, 1, down, weights.down_bias, outputs, blocks, None)
    _combine_kernel[(rows, triton.cdiv(width, COLUMNS))](
        outputs, routing.weights.contiguous(), out, top_k, width, COLUMNS=COLUMNS
    )
    return out


def _map_pairs(
    x: Tensor,
    sharing: int,
    weight: Tensor | QuantizedTensor,
    bias: Tensor | None,
    out: Tensor,
    blocks: PairBlocks,
    activation: GatedActivation | None,
) -> None:
    """Map every pair's row of x by its expert; to the gated half if there is an activation."""
    if isinstance(weight, QuantizedTensor):
        x = weight.ordered(x)
    tile = expert_tile(x.element_size(), is_gated=activation is not None)
    pairs, outputs = out.shape
    step = tile_inputs(weight, tile.inputs, INPUTS_OF_FLOAT8)
    parts, sizes, (form, scales) = tile_arguments(weight, step)
    _map_pairs_kernel[(triton.cdiv(outputs, tile.outputs), blocks.experts.numel())](
        x,
        *parts,
        bias,
        out,
        *blocks,
        x.stride(0),
        pairs,
        sharing,
        outputs,
        x.shape[1],
        *sizes,
        0.0 if activation is None else activation.alpha,
        0.0 if activation is None else activation.limit,
        FORMAT=form,
        SCALES=scales,
        GATE=None if activation is None else activation.kind,
        DOT=dot_type(x.dtype),
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        INPUTS=step,
        # Sums of a tile, next to those of all inputs, take registers; float4 has none.
        num_warps=2 * tile.warps if scales and form != "float4_e2m1fn" else tile.warps,
        num_stages=tile.stages,
    )
