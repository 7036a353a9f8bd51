"""The convolution of the gated delta rule, for all rows of a forward at once, and what it shares
with the kernel that keeps drafted rows.

A row's inputs are those of the rows before it, or of its ancestors in a tree, and before them those
of its request's state. Products are added from the newest input to the oldest, each by one fused
multiply-add, whichever kernel adds them.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.recurrent import DeltaParams, DeltaRows, DeltaState, RecurrentRule

ROWS = 8
CHANNELS = 256
MIN_NODES = 16
"""One kernel for all small trees."""


def marked_nodes(nodes: int) -> int:
    """Return how many marks of a node a program reads at once."""
    wide: int = triton.next_power_of_2(nodes)
    return max(MIN_NODES, wide)


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def bias_of(bias_ptr, channels, inside):
    """Load biases of channels; zeros where there are none."""
    if bias_ptr is None:
        return tl.zeros(channels.shape, tl.float32)
    else:
        return tl.load(bias_ptr + channels, inside, 0.0)


@triton.jit
def _request_of(starts_ptr, rows, batch):
    """Count the requests that begin at or before each row, by bisection; the last one has it."""
    low, high = tl.zeros_like(rows), tl.zeros_like(rows) + batch - 1
    width = batch
    while width > 1:
        middle = (low + high + 1) // 2
        is_after = tl.load(starts_ptr + middle) <= rows
        low = tl.where(is_after, middle, low)
        high = tl.where(is_after, high, tl.maximum(middle - 1, low))
        width = (width + 1) // 2
    return low


@triton.jit
def _parents_of(ancestry_ptr, at, stride, nodes, NODES: tl.constexpr):
    """The greatest ancestor of node at [rows] below itself, by its row of marks; else -1."""
    others = tl.arange(0, NODES)
    inside = (others[None, :] < at[:, None]) & (others[None, :] < nodes)
    marks = tl.load(ancestry_ptr[:, None] + at[:, None] * stride + others[None, :], inside, 0)
    return tl.max(tl.where(marks != 0, others[None, :], -1), axis=1)


@triton.jit(
    do_not_specialize=(
        *("layer", "num_rows", "batch", "num_slots", "stride_tree", "stride_node", "nodes"),
    ),
    do_not_specialize_on_alignment=("slots_ptr", "starts_ptr", "ancestry_ptr"),
)
def convolve_kernel(
    u_ptr,
    conv_ptr,
    inputs_ptr,
    slots_ptr,
    starts_ptr,
    ancestry_ptr,  # or None
    bias_ptr,  # or None
    x_ptr,
    layer,
    num_rows,
    batch,
    num_slots,
    stride_tree,
    stride_node,
    nodes,
    stride_u,
    CHANNELS: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NODES: tl.constexpr,
    IS_ACTIVE: tl.constexpr,  # whether silu follows
):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_row, is_column = rows < num_rows, columns < CHANNELS
    request = _request_of(starts_ptr, rows, batch)
    first, slot = tl.load(starts_ptr + request), tl.load(slots_ptr + rows, is_row, 0)
    inputs_ptr += (layer.to(tl.int64) * num_slots + slot) * ((WIDTH - 1) * CHANNELS)
    conv_ptr += layer.to(tl.int64) * (WIDTH * CHANNELS) + columns
    if ancestry_ptr is not None:
        ancestry_ptr += request * stride_tree
    total, at = tl.zeros([ROWS, COLUMNS], tl.float32), rows - first
    for step in tl.static_range(WIDTH):
        is_new = at >= 0
        is_read = (is_row & is_new)[:, None] & is_column[None, :]
        new = tl.load(u_ptr + (first + at)[:, None] * stride_u + columns[None, :], is_read, 0.0)
        state_row = inputs_ptr + (WIDTH - 1 + at) * CHANNELS
        is_read = (is_row & (at < 0))[:, None] & is_column[None, :]
        old = tl.load(state_row[:, None] + columns[None, :], is_read, 0.0)
        value = tl.where(is_new[:, None], new.to(tl.float32), old.to(tl.float32))
        weight = tl.load(conv_ptr + (WIDTH - 1 - step) * CHANNELS, is_column, 0.0)
        total = tl.fma(value, tl.zeros_like(value) + weight[None, :], total)
        before = at - 1
        if ancestry_ptr is not None:
            parents = _parents_of(ancestry_ptr, tl.maximum(at, 0), stride_node, nodes, NODES)
            before = tl.where(is_new, parents.to(tl.int64), before)
        at = before
    total += bias_of(bias_ptr, layer.to(tl.int64) * CHANNELS + columns, is_column)[None, :]
    if IS_ACTIVE:
        total = silu(total)
    x_ptr += rows[:, None] * CHANNELS + columns[None, :]
    tl.store(x_ptr, total.to(x_ptr.dtype.element_ty), is_row[:, None] & is_column[None, :])


def convolve(
    u: Tensor, params: DeltaParams, state: DeltaState, layer: int, rows: DeltaRows
) -> Tensor:
    """Return silu of the convolution of u [rows, channels] f32; of a layer that is nothing but a
    convolution, that of u's type.
    """
    count, shape = u.shape[0], params.shape
    is_active = shape.rule != RecurrentRule.CONVOLUTION
    dtype = torch.float32 if is_active else u.dtype
    x = torch.empty(count, shape.channels, dtype=dtype, device=u.device)
    columns = min(CHANNELS, triton.next_power_of_2(shape.channels))
    nodes = 0 if rows.ancestry is None else rows.ancestry.shape[1]
    convolve_kernel[(triton.cdiv(count, ROWS), triton.cdiv(shape.channels, columns))](
        u,
        params.conv,
        state.inputs,
        rows.slots,
        rows.cu_seqlens,
        None if rows.ancestry is None else rows.ancestry.view(torch.uint8),
        params.conv_bias,
        x,
        layer,
        count,
        rows.batch_size,
        state.inputs.shape[1],
        *((0, 0) if rows.ancestry is None else rows.ancestry.stride()[:2]),
        nodes,
        u.stride(0),
        CHANNELS=shape.channels,
        WIDTH=shape.conv_width,
        ROWS=ROWS,
        COLUMNS=columns,
        NODES=marked_nodes(nodes),
        IS_ACTIVE=is_active,
    )
    return x
