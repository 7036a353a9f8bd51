"""Which inputs of a convolution are kept, and layers that are nothing but a convolution.

A program has some channels of one request: their inputs are read and written by no other one.
"""

import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.recurrent import DeltaParams, DeltaRows, DeltaState
from specdecode_kernels.triton.delta_convolution import convolve

COLUMNS = 256


@triton.jit
def keep_inputs(
    u_ptr, inputs_ptr, drafted_ptr, channels, inside, kept, count, stride_u, SHAPE: tl.constexpr
):
    """Keep the inputs up to the last kept row of a request, and store those of drafted rows."""
    BEFORE: tl.constexpr = SHAPE[4] - 1
    CHANNELS: tl.constexpr = 2 * SHAPE[0] * SHAPE[2] + SHAPE[1] * SHAPE[3]
    for tap in tl.static_range(BEFORE):
        at = kept + tap - BEFORE
        new = tl.load(u_ptr + at * stride_u + channels, inside & (at >= 0), 0.0)
        old = tl.load(inputs_ptr + (kept + tap) * CHANNELS + channels, inside & (at < 0), 0.0)
        tl.store(inputs_ptr + tap * CHANNELS + channels, tl.where(at >= 0, new, old), inside)
    for row in range(kept, count):
        drafted = tl.load(u_ptr + row * stride_u + channels, inside)
        tl.store(drafted_ptr + (row - kept) * CHANNELS + channels, drafted, inside)


@triton.jit
def load_input(drafted_ptr, inputs_ptr, path_ptr, at, channels, inside, SHAPE: tl.constexpr):
    """Load channels of the accepted row `at`, or of the state's inputs where it is negative."""
    CHANNELS: tl.constexpr = 2 * SHAPE[0] * SHAPE[2] + SHAPE[1] * SHAPE[3]
    node = at + 1
    if path_ptr is not None:
        node = tl.load(path_ptr + node, at >= 0, 1)
    new = tl.load(drafted_ptr + (node - 1) * CHANNELS + channels, inside & (at >= 0), 0.0)
    old_ptr = inputs_ptr + (SHAPE[4] - 1 + at) * CHANNELS
    old = tl.load(old_ptr + channels, inside & (at < 0), 0.0)
    return tl.where(at >= 0, new, old)


@triton.jit
def keep_channels(
    drafted_ptr, inputs_ptr, path_ptr, channels, inside, accepted, SHAPE: tl.constexpr
):
    """Write the inputs up to the last accepted row, the oldest first: each is read before."""
    CHANNELS: tl.constexpr = 2 * SHAPE[0] * SHAPE[2] + SHAPE[1] * SHAPE[3]
    BEFORE: tl.constexpr = SHAPE[4] - 1
    for tap in tl.static_range(BEFORE):
        at = accepted + tap - BEFORE
        kept = load_input(drafted_ptr, inputs_ptr, path_ptr, at, channels, inside, SHAPE)
        tl.store(inputs_ptr + tap * CHANNELS + channels, kept, inside)


@triton.jit(
    do_not_specialize=("layer", "num_chunks", "num_slots", "drafted_slots", "drafted_nodes"),
    do_not_specialize_on_alignment=("slots_ptr", "starts_ptr"),
)
def keep_rows_kernel(
    u_ptr,
    inputs_ptr,
    drafted_ptr,
    slots_ptr,
    starts_ptr,
    layer,
    num_chunks,
    num_slots,
    drafted_slots,
    drafted_nodes,
    stride_u,
    SHAPE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    CHANNELS: tl.constexpr = SHAPE[1] * SHAPE[3]
    request = tl.program_id(0).to(tl.int64)
    first = tl.load(starts_ptr + request)
    count = tl.load(starts_ptr + request + 1) - first
    if count == 0:
        return
    kept = tl.where(request < num_chunks, count, 1)
    slot = tl.load(slots_ptr + first)
    state = layer.to(tl.int64) * num_slots + slot
    drafted = (layer.to(tl.int64) * drafted_slots + slot) * drafted_nodes
    channels = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    keep_inputs(
        u_ptr + first * stride_u,
        inputs_ptr + state * ((SHAPE[4] - 1) * CHANNELS),
        drafted_ptr + drafted * CHANNELS,
        channels,
        channels < CHANNELS,
        kept,
        count,
        stride_u,
        SHAPE,
    )


@triton.jit(
    do_not_specialize=("batch", "num_slots", "drafted_slots", "drafted_nodes", "stride_path"),
    do_not_specialize_on_alignment=("slots_ptr", "path_ptr", "accepted_ptr"),
)
def keep_accepted_kernel(
    inputs_ptr,
    drafted_ptr,
    slots_ptr,
    path_ptr,  # or None
    accepted_ptr,
    batch,
    num_slots,
    drafted_slots,
    drafted_nodes,
    stride_path,
    SHAPE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    CHANNELS: tl.constexpr = SHAPE[1] * SHAPE[3]
    layer = (tl.program_id(0) // batch).to(tl.int64)
    request = (tl.program_id(0) % batch).to(tl.int64)
    accepted = tl.load(accepted_ptr + request)
    if accepted == 0:
        return
    slot = tl.load(slots_ptr + request)
    state, drafted = layer * num_slots + slot, (layer * drafted_slots + slot) * drafted_nodes
    if path_ptr is not None:
        path_ptr += request * stride_path
    channels = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inputs_ptr += state * ((SHAPE[4] - 1) * CHANNELS)
    ptrs = drafted_ptr + drafted * CHANNELS, inputs_ptr, path_ptr
    keep_channels(*ptrs, channels, channels < CHANNELS, accepted, SHAPE)


def convolve_alone(
    u: Tensor, params: DeltaParams, state: DeltaState, layer: int, rows: DeltaRows
) -> Tensor:
    """Return the convolution of u [rows, channels], and keep the inputs of every request."""
    y, shape = convolve(u, params, state, layer, rows), params.shape
    keep_rows_kernel[(rows.batch_size, triton.cdiv(shape.channels, COLUMNS))](
        u,
        state.inputs,
        state.drafted,
        rows.slots,
        rows.cu_seqlens,
        layer,
        rows.num_chunks,
        state.inputs.shape[1],
        *state.drafted.shape[1:3],
        u.stride(0),
        SHAPE=tuple(shape),
        COLUMNS=COLUMNS,
    )
    return y


def keep_accepted(
    params: DeltaParams, state: DeltaState, slots: Tensor, path: Tensor | None, accepted: Tensor
) -> None:
    """See `Backend.keep_drafted`; path has contiguous rows."""
    shape, programs = params.shape, params.conv.shape[0] * slots.shape[0]
    keep_accepted_kernel[(programs, triton.cdiv(shape.channels, COLUMNS))](
        state.inputs,
        state.drafted,
        slots.contiguous(),
        path,
        accepted.contiguous(),
        slots.shape[0],
        state.inputs.shape[1],
        *state.drafted.shape[1:3],
        0 if path is None else path.stride(0),
        SHAPE=tuple(shape),
        COLUMNS=COLUMNS,
    )
