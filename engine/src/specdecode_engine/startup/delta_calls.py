"""The calls of recurrent layers that an engine's steps make, on tensors without memory."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from specdecode_engine.model.kv.delta_states import DeltaLayers
from specdecode_engine.startup.kernel_needs import KernelNeeds
from specdecode_engine.startup.op_inputs import empty
from specdecode_kernels import Backend, DeltaParams, DeltaRows, DeltaState, OpCall


def delta_calls(needs: KernelNeeds, layers: DeltaLayers, ops: Backend) -> Iterator[OpCall]:
    """Yield a layer's rows, in chains and trees, and the folding of accepted ones."""
    params, state = _params(layers), _state(needs, layers)
    trees = [shape for shape in needs.shapes if shape.topk > 1 and shape.num_steps]
    sizes = {1 << n for shape in trees for n in range(shape.num_tokens.bit_length())}
    for nodes in (None, *sorted(sizes | {shape.num_tokens for shape in trees})):
        yield "recurrent layers", partial(_mix, needs, params, state, nodes, ops)
    for length in (None, *sorted({shape.path_length for shape in trees})):
        path, at = None if length is None else empty(3, length), empty(3)
        if needs.shapes:
            yield "states of drafts", partial(ops.keep_drafted, params, state, at, path, at)


def _mix(
    needs: KernelNeeds, params: DeltaParams, state: DeltaState, nodes: int | None, ops: Backend
) -> None:
    """Call with u and gates as one projection leaves them, z between them; a convolution has
    neither gates nor z.
    """
    shape, rows = params.shape, 3 * (nodes or 1)
    widths = [shape.channels, shape.v_heads * shape.v_dim if shape.gates else 0, shape.gates]
    u, _, gates = empty(rows, sum(widths), dtype=needs.dtype).split_with_sizes(widths, dim=1)
    marks: Tensor | None = None
    if nodes is not None:
        marks = empty(3, nodes, nodes, dtype=torch.bool)
    ops.gated_delta(u, gates, params, state, 0, DeltaRows(empty(rows), empty(4), 3, 0, marks))


def _params(layers: DeltaLayers) -> DeltaParams:
    count, shape = layers.count, layers.shape

    def floats(*sizes: int) -> Tensor:
        return empty(count, *sizes, dtype=torch.float32)

    conv = floats(shape.conv_width, shape.channels)
    bias = floats(shape.channels) if layers.has_bias else None
    return DeltaParams(shape, conv, floats(shape.v_heads), floats(shape.v_heads), bias)


def _state(needs: KernelNeeds, layers: DeltaLayers) -> DeltaState:
    count, shape = layers.count, layers.shape
    slots, nodes = (
        needs.max_running + 1,
        max((each.num_tokens for each in needs.shapes), default=1),
    )

    def entries(*sizes: int, dtype: torch.dtype = needs.dtype) -> Tensor:
        return empty(count, slots, *sizes, dtype=dtype)

    return DeltaState(
        entries(shape.conv_width - 1, shape.channels),
        entries(shape.v_heads, shape.k_dim, shape.v_dim, dtype=torch.float32),
        entries(nodes - 1, shape.channels),
        entries(nodes - 1, shape.gates),
    )
