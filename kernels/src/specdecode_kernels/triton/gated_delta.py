"""The gated delta rule: a program holds some columns of one head's matrix in registers.

It reads the rows of its request one after the other, in a loop whose body does not depend on their
number. For each node of a tree a program of a second launch reads the node's ancestors again, from
the state after the root: nothing is kept for a node. Numbers of rows, slots and ancestors are read
on the device.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.recurrent import (
    NORM_EPS,
    DeltaParams,
    DeltaRows,
    DeltaShape,
    DeltaState,
    RecurrentRule,
)
from specdecode_kernels.triton.convolution_rows import convolve_alone, keep_inputs
from specdecode_kernels.triton.delta_convolution import convolve, marked_nodes

TILE = 4096
"""Numbers of a matrix that a program holds: 32 in a thread of four warps."""
MOST_REGISTERS = 128
"""Of a thread. Left alone, the compiler would rather spill a few than take so many."""
EPS = tl.constexpr(NORM_EPS)


class Columns(NamedTuple):
    """How a head's matrix is cut."""

    keys: int  # its rows, filled up
    values: int  # columns of a program
    blocks: int  # programs

    @classmethod
    def of(cls, shape: DeltaShape) -> "Columns":
        keys = triton.next_power_of_2(shape.k_dim)
        values = min(triton.next_power_of_2(shape.v_dim), max(TILE // keys, 1))
        return cls(keys, values, triton.cdiv(shape.v_dim, values))


@triton.jit
def matrix_of(matrices_ptr, head, keys, columns, SHAPE: tl.constexpr):
    """Return where columns of a head's matrix are, counted over all heads, and which exist."""
    ptrs = matrices_ptr + head * (SHAPE[2] * SHAPE[3])
    inside = (keys < SHAPE[2])[:, None] & (columns < SHAPE[3])[None, :]
    return ptrs + keys[:, None] * SHAPE[3] + columns[None, :], inside


@triton.jit
def _softplus(x):
    """log(1 + e^x) = max(x, 0) + log(1 + z), by the series of 2 artanh(z / (2 + z))."""
    z = tl.exp(-tl.abs(x))
    ratio = z / (2.0 + z)
    square = ratio * ratio
    total = square * (1.0 / 15) + 1.0 / 13
    total = total * square + 1.0 / 11
    total = total * square + 1.0 / 9
    total = total * square + 1.0 / 7
    total = total * square + 1.0 / 5
    total = total * square + 1.0 / 3
    total = total * square + 1.0
    return tl.maximum(x, 0.0) + 2.0 * ratio * total


@triton.jit
def read_token(s, q, k, v, beta, gate, decay, dt_bias, K_DIM: tl.constexpr):
    """Return S after a token, and y; q and k are not normed yet."""
    q *= tl.rsqrt(tl.sum(q * q) + EPS) * (K_DIM**-0.5)
    k *= tl.rsqrt(tl.sum(k * k) + EPS)
    kept = tl.exp(-decay * _softplus(gate.to(tl.float32) + dt_bias))
    share = 1.0 / (1.0 + tl.exp(-beta.to(tl.float32)))
    s *= kept
    change = (v - tl.sum(s * k[:, None], axis=0)) * share
    s += k[:, None] * change[None, :]
    return s, tl.sum(s * q[:, None], axis=0)


@triton.jit
def _read_row(
    s, x_ptr, gates_ptr, k_head, head, keys, columns, decay, dt_bias, SHAPE: tl.constexpr
):
    """Read one row: x_ptr and gates_ptr are its own."""
    K_HEADS: tl.constexpr = SHAPE[0]
    V_HEADS: tl.constexpr = SHAPE[1]
    K_DIM: tl.constexpr = SHAPE[2]
    V_DIM: tl.constexpr = SHAPE[3]
    q = tl.load(x_ptr + k_head * K_DIM + keys, keys < K_DIM, 0.0)
    k = tl.load(x_ptr + (K_HEADS + k_head) * K_DIM + keys, keys < K_DIM, 0.0)
    x_ptr += 2 * K_HEADS * K_DIM + head * V_DIM
    v = tl.load(x_ptr + columns, columns < V_DIM, 0.0)
    beta, gate = tl.load(gates_ptr + head), tl.load(gates_ptr + V_HEADS + head)
    return read_token(s, q, k, v, beta, gate, decay, dt_bias, K_DIM)


@triton.jit
def _keep_head(
    u_ptr, inputs_ptr, drafted_ptr, head, keys, columns, kept, count, stride_u, SHAPE: tl.constexpr
):
    """Keep the inputs of a v head's columns; its first program those of a k head, once."""
    K_HEADS: tl.constexpr = SHAPE[0]
    K_DIM: tl.constexpr = SHAPE[2]
    SHARED: tl.constexpr = SHAPE[1] // K_HEADS
    ptrs, rows = (u_ptr, inputs_ptr, drafted_ptr), (kept, count, stride_u)
    own = 2 * K_HEADS * K_DIM + head * SHAPE[3] + columns
    keep_inputs(*ptrs, own, columns < SHAPE[3], *rows, SHAPE)
    if (tl.program_id(2) == 0) & (head % SHARED == 0):
        for part in tl.static_range(2):
            shared = (part * K_HEADS + head // SHARED) * K_DIM + keys
            keep_inputs(*ptrs, shared, keys < K_DIM, *rows, SHAPE)


@triton.jit
def _store_gates(gates_ptr, drafted_ptr, kept, count, stride_gates, V_HEADS: tl.constexpr):
    """Store both gates of one head of every drafted row."""
    for row in range(kept, count):
        for part in tl.static_range(2):
            gate = tl.load(gates_ptr + row * stride_gates + part * V_HEADS)
            tl.store(drafted_ptr + ((row - kept) * 2 + part) * V_HEADS, gate)


@triton.jit(
    do_not_specialize=("layer", "num_chunks", "num_slots", "drafted_slots", "drafted_nodes"),
    do_not_specialize_on_alignment=("slots_ptr", "starts_ptr"),
)
def gated_delta_kernel(
    x_ptr,
    u_ptr,
    gates_ptr,
    decays,  # decay and dt_bias
    inputs_ptr,
    matrices_ptr,
    drafted_ptr,
    drafted_gates_ptr,
    slots_ptr,
    starts_ptr,
    y_ptr,
    layer,
    num_chunks,
    num_slots,
    drafted_slots,
    drafted_nodes,
    strides,  # of u and of gates
    SHAPE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    IS_TREE: tl.constexpr,  # roots are read alone
):
    V_HEADS: tl.constexpr = SHAPE[1]
    V_DIM: tl.constexpr = SHAPE[3]
    CHANNELS: tl.constexpr = 2 * SHAPE[0] * SHAPE[2] + V_HEADS * V_DIM
    request, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first = tl.load(starts_ptr + request)
    count = tl.load(starts_ptr + request + 1) - first
    if count == 0:
        return
    kept = tl.where(request < num_chunks, count, 1)
    slot = tl.load(slots_ptr + first)
    state = layer.to(tl.int64) * num_slots + slot
    drafted = (layer.to(tl.int64) * drafted_slots + slot) * drafted_nodes
    k_head = head // (V_HEADS // SHAPE[0])
    keys, columns = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    s_ptrs, inside = matrix_of(matrices_ptr, state * V_HEADS + head, keys, columns, SHAPE)
    decay = tl.load(decays[0] + layer * V_HEADS + head)
    dt_bias = tl.load(decays[1] + layer * V_HEADS + head)
    s = tl.load(s_ptrs, inside, 0.0)
    u_ptr, gates_ptr = u_ptr + first * strides[0], gates_ptr + first * strides[1]
    read = 1 if IS_TREE else count
    for at in range(read):
        row_ptrs = x_ptr + (first + at) * CHANNELS, gates_ptr + at * strides[1]
        s, y = _read_row(s, *row_ptrs, k_head, head, keys, columns, decay, dt_bias, SHAPE)
        out_ptr = y_ptr + ((first + at) * V_HEADS + head) * V_DIM
        tl.store(out_ptr + columns, y.to(y_ptr.dtype.element_ty), columns < V_DIM)
        if at == kept - 1:
            tl.store(s_ptrs, s, inside)
    inputs_ptr += state * ((SHAPE[4] - 1) * CHANNELS)
    ptrs = u_ptr, inputs_ptr, drafted_ptr + drafted * CHANNELS
    _keep_head(*ptrs, head, keys, columns, kept, count, strides[0], SHAPE)
    if tl.program_id(2) == 0:
        drafted_gates_ptr += drafted * (2 * V_HEADS) + head
        _store_gates(gates_ptr + head, drafted_gates_ptr, kept, count, strides[1], V_HEADS)


@triton.jit(
    do_not_specialize=("layer", "num_slots", "stride_tree", "stride_node", "nodes"),
    do_not_specialize_on_alignment=("slots_ptr", "starts_ptr", "ancestry_ptr"),
)
def gated_delta_tree_kernel(
    x_ptr,
    gates_ptr,
    decay_ptr,
    dt_bias_ptr,
    matrices_ptr,
    slots_ptr,
    starts_ptr,
    ancestry_ptr,
    y_ptr,
    layer,
    num_slots,
    stride_tree,
    stride_node,
    nodes,
    stride_gates,
    SHAPE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    NODES: tl.constexpr,
):
    K_HEADS: tl.constexpr = SHAPE[0]
    V_HEADS: tl.constexpr = SHAPE[1]
    K_DIM: tl.constexpr = SHAPE[2]
    V_DIM: tl.constexpr = SHAPE[3]
    CHANNELS: tl.constexpr = 2 * K_HEADS * K_DIM + V_HEADS * V_DIM
    head, node = tl.program_id(1), tl.program_id(0) % (nodes - 1) + 1
    request = (tl.program_id(0) // (nodes - 1)).to(tl.int64)
    first = tl.load(starts_ptr + request)
    if node >= tl.load(starts_ptr + request + 1) - first:
        return
    others = tl.arange(0, NODES)
    marks_ptr = ancestry_ptr + request * stride_tree + node * stride_node
    marks = tl.load(marks_ptr + others, others < nodes, 0)
    is_read = (marks != 0) & (others > 0) & (others <= node)
    state = layer.to(tl.int64) * num_slots + tl.load(slots_ptr + first)
    k_head = head // (V_HEADS // K_HEADS)
    keys, columns = tl.arange(0, KEYS), tl.program_id(2) * VALUES + tl.arange(0, VALUES)
    s_ptrs, inside = matrix_of(matrices_ptr, state * V_HEADS + head, keys, columns, SHAPE)
    s = tl.load(s_ptrs, inside, 0.0)
    decay = tl.load(decay_ptr + layer * V_HEADS + head)
    dt_bias = tl.load(dt_bias_ptr + layer * V_HEADS + head)
    y = tl.zeros([VALUES], tl.float32)
    at = tl.zeros([], tl.int32)
    for _ in range(tl.sum(is_read.to(tl.int32))):
        at = tl.min(tl.where(is_read & (others > at), others, NODES))
        row = first + at
        row_ptrs = x_ptr + row * CHANNELS, gates_ptr + row * stride_gates
        s, y = _read_row(s, *row_ptrs, k_head, head, keys, columns, decay, dt_bias, SHAPE)
    y_ptr += ((first + node) * V_HEADS + head) * V_DIM
    tl.store(y_ptr + columns, y.to(y_ptr.dtype.element_ty), columns < V_DIM)


def gated_delta(
    u: Tensor, gates: Tensor, params: DeltaParams, state: DeltaState, layer: int, rows: DeltaRows
) -> Tensor:
    u, gates = (x if x.stride(1) == 1 else x.contiguous() for x in (u, gates))
    shape, slots = params.shape, state.inputs.shape[1]
    y = torch.empty(u.shape[0], shape.v_heads, shape.v_dim, dtype=u.dtype, device=u.device)
    if not u.shape[0]:
        return y
    if shape.rule == RecurrentRule.CONVOLUTION:
        return convolve_alone(u, params, state, layer, rows).view(y.shape)
    x, cut = convolve(u, params, state, layer, rows), Columns.of(shape)
    sizes = {"SHAPE": tuple(shape), "KEYS": cut.keys, "VALUES": cut.values}
    gated_delta_kernel[(rows.batch_size, shape.v_heads, cut.blocks)](
        x,
        u,
        gates,
        (params.decay, params.dt_bias),
        state.inputs,
        state.matrices,
        state.drafted,
        state.drafted_gates,
        rows.slots,
        rows.cu_seqlens,
        y,
        layer,
        rows.num_chunks,
        slots,
        *state.drafted.shape[1:3],
        (u.stride(0), gates.stride(0)),
        **sizes,
        IS_TREE=rows.ancestry is not None,
        maxnreg=MOST_REGISTERS,
    )
    if rows.ancestry is not None and rows.ancestry.shape[1] > 1:
        nodes = rows.ancestry.shape[1]
        gated_delta_tree_kernel[(rows.batch_size * (nodes - 1), shape.v_heads, cut.blocks)](
            x,
            gates,
            params.decay,
            params.dt_bias,
            state.matrices,
            rows.slots,
            rows.cu_seqlens,
            rows.ancestry.view(torch.uint8),
            y,
            layer,
            slots,
            *rows.ancestry.stride()[:2],
            nodes,
            gates.stride(0),
            **sizes,
            NODES=marked_nodes(nodes),
            maxnreg=MOST_REGISTERS,
        )
    return y
