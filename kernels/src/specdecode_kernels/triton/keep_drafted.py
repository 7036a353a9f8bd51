"""Accepted rows of drafts folded into the states of all layers, in one launch.

A program has a k head of a request in one layer, with its v heads: the inputs of its channels are
read and written by no other program. Tokens pass as in a forward that keeps them.
"""

import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.recurrent import DeltaParams, DeltaState, RecurrentRule
from specdecode_kernels.triton.convolution_rows import (
    keep_accepted,
    keep_channels,
    load_input,
)
from specdecode_kernels.triton.delta_convolution import bias_of, silu
from specdecode_kernels.triton.gated_delta import Columns, matrix_of, read_token

MOST_REGISTERS = 160
"""Of a thread: with fewer, heads of 256 spill on capability 8.0."""


@triton.jit
def _convolve(
    conv_ptr, bias_ptr, drafted_ptr, inputs_ptr, path_ptr, at, channels, inside, SHAPE: tl.constexpr
):
    """Convolve channels of one accepted row as `convolve_kernel` does."""
    CHANNELS: tl.constexpr = 2 * SHAPE[0] * SHAPE[2] + SHAPE[1] * SHAPE[3]
    WIDTH: tl.constexpr = SHAPE[4]
    total = tl.zeros(channels.shape, tl.float32)
    for step in tl.static_range(WIDTH):
        ptrs = drafted_ptr, inputs_ptr, path_ptr
        value = load_input(*ptrs, at - step, channels, inside, SHAPE).to(tl.float32)
        weight = tl.load(conv_ptr + (WIDTH - 1 - step) * CHANNELS + channels, inside, 0.0)
        total = tl.fma(value, weight, total)
    return silu(total + bias_of(bias_ptr, channels, inside))


@triton.jit
def _read_accepted(
    s,
    conv_ptr,
    bias_ptr,
    drafted_ptr,
    inputs_ptr,
    path_ptr,
    gates_ptr,
    at,
    k_head,
    head,
    keys,
    columns,
    decay,
    dt_bias,
    SHAPE: tl.constexpr,
):
    """Return S after the accepted row `at`."""
    K_DIM: tl.constexpr = SHAPE[2]
    ptrs, is_key = (conv_ptr, bias_ptr, drafted_ptr, inputs_ptr, path_ptr), keys < K_DIM
    q = _convolve(*ptrs, at, k_head * K_DIM + keys, is_key, SHAPE)
    k = _convolve(*ptrs, at, (SHAPE[0] + k_head) * K_DIM + keys, is_key, SHAPE)
    v_at = 2 * SHAPE[0] * K_DIM + head * SHAPE[3] + columns
    v = _convolve(*ptrs, at, v_at, columns < SHAPE[3], SHAPE)
    node = at + 1
    if path_ptr is not None:
        node = tl.load(path_ptr + node)
    gates_ptr += (node - 1) * (2 * SHAPE[1]) + head
    beta, gate = tl.load(gates_ptr), tl.load(gates_ptr + SHAPE[1])
    s, _ = read_token(s, q, k, v, beta, gate, decay, dt_bias, K_DIM)
    return s


@triton.jit
def _keep_head(
    drafted_ptr,
    inputs_ptr,
    path_ptr,
    k_head,
    keys,
    accepted,
    SHAPE: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """Keep the inputs of a k head and of its v heads."""
    SHARED: tl.constexpr = SHAPE[1] // SHAPE[0]
    ptrs = drafted_ptr, inputs_ptr, path_ptr
    for part in tl.static_range(2):
        own = (part * SHAPE[0] + k_head) * SHAPE[2] + keys
        keep_channels(*ptrs, own, keys < SHAPE[2], accepted, SHAPE)
    for part in range(SHARED * BLOCKS):
        columns = part % BLOCKS * VALUES + tl.arange(0, VALUES)
        of_v = 2 * SHAPE[0] * SHAPE[2] + (k_head * SHARED + part // BLOCKS) * SHAPE[3] + columns
        keep_channels(*ptrs, of_v, columns < SHAPE[3], accepted, SHAPE)


@triton.jit(
    do_not_specialize=("batch", "num_slots", "drafted_slots", "drafted_nodes", "stride_path"),
    do_not_specialize_on_alignment=("slots_ptr", "path_ptr", "accepted_ptr"),
)
def keep_drafted_kernel(
    conv_ptr,
    bias_ptr,  # of the convolution, or None
    decays,  # decay and dt_bias
    inputs_ptr,
    matrices_ptr,
    drafts,  # drafted rows and their gates
    slots_ptr,
    path_ptr,  # or None
    accepted_ptr,
    batch,
    num_slots,
    drafted_slots,
    drafted_nodes,
    stride_path,
    SHAPE: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    V_HEADS: tl.constexpr = SHAPE[1]
    CHANNELS: tl.constexpr = 2 * SHAPE[0] * SHAPE[2] + V_HEADS * SHAPE[3]
    SHARED: tl.constexpr = V_HEADS // SHAPE[0]
    layer = (tl.program_id(0) // batch).to(tl.int64)
    request = (tl.program_id(0) % batch).to(tl.int64)
    k_head = tl.program_id(1)
    accepted = tl.load(accepted_ptr + request)
    if accepted == 0:
        return
    slot = tl.load(slots_ptr + request)
    state, drafted = layer * num_slots + slot, (layer * drafted_slots + slot) * drafted_nodes
    inputs_ptr += state * ((SHAPE[4] - 1) * CHANNELS)
    drafted_ptr, gates_ptr = drafts[0] + drafted * CHANNELS, drafts[1] + drafted * (2 * V_HEADS)
    if path_ptr is not None:
        path_ptr += request * stride_path
    keys = tl.arange(0, KEYS)
    ptrs = drafted_ptr, inputs_ptr, path_ptr
    conv_ptr += layer * (SHAPE[4] * CHANNELS)
    if bias_ptr is not None:
        bias_ptr += layer * CHANNELS
    for part in range(SHARED * BLOCKS):
        head = k_head * SHARED + part // BLOCKS
        columns = part % BLOCKS * VALUES + tl.arange(0, VALUES)
        decay = tl.load(decays[0] + layer * V_HEADS + head)
        dt_bias = tl.load(decays[1] + layer * V_HEADS + head)
        s_ptrs, inside = matrix_of(matrices_ptr, state * V_HEADS + head, keys, columns, SHAPE)
        s = tl.load(s_ptrs, inside, 0.0)
        rest = k_head, head, keys, columns, decay, dt_bias
        for at in range(accepted):
            s = _read_accepted(s, conv_ptr, bias_ptr, *ptrs, gates_ptr, at, *rest, SHAPE)
        tl.store(s_ptrs, s, inside)
    tl.debug_barrier()
    _keep_head(*ptrs, k_head, keys, accepted, SHAPE, VALUES, BLOCKS)


def keep_drafted(
    params: DeltaParams, state: DeltaState, slots: Tensor, path: Tensor | None, accepted: Tensor
) -> None:
    if not slots.shape[0]:
        return
    path = path if path is None or path.stride(1) == 1 else path.contiguous()
    shape, layers = params.shape, params.conv.shape[0]
    if shape.rule == RecurrentRule.CONVOLUTION:
        keep_accepted(params, state, slots, path, accepted)
        return
    cut = Columns.of(shape)
    keep_drafted_kernel[(layers * slots.shape[0], shape.k_heads)](
        params.conv,
        params.conv_bias,
        (params.decay, params.dt_bias),
        state.inputs,
        state.matrices,
        (state.drafted, state.drafted_gates),
        slots.contiguous(),
        path,
        accepted.contiguous(),
        slots.shape[0],
        state.inputs.shape[1],
        *state.drafted.shape[1:3],
        0 if path is None else path.stride(0),
        SHAPE=tuple(shape),
        KEYS=cut.keys,
        VALUES=cut.values,
        BLOCKS=cut.blocks,
        maxnreg=MOST_REGISTERS,
    )
