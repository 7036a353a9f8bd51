"""The gated delta rule and short convolutions, token by token; see `recurrent`."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels.recurrent import (
    NORM_EPS,
    DeltaParams,
    DeltaRows,
    DeltaShape,
    DeltaState,
    RecurrentRule,
)


class _TextState(NamedTuple):
    """The state of one request in one layer."""

    inputs: Tensor  # [conv_width - 1, channels]
    matrix: Tensor  # [v_heads, k_dim, v_dim]

    @classmethod
    def of(cls, state: DeltaState, layer: int, slot: int) -> "_TextState":
        return cls(state.inputs[layer, slot].clone(), state.matrices[layer, slot].clone())


class _Layer(NamedTuple):
    """Parameters of one layer; see `DeltaParams`."""

    shape: DeltaShape
    conv: Tensor
    decay: Tensor
    dt_bias: Tensor
    conv_bias: Tensor | None

    @classmethod
    def of(cls, params: DeltaParams, layer: int) -> "_Layer":
        bias = None if params.conv_bias is None else params.conv_bias[layer]
        own = params.conv[layer], params.decay[layer], params.dt_bias[layer]
        return cls(params.shape, *own, bias)

    def advance(self, state: _TextState, u: Tensor, gates: Tensor) -> tuple[_TextState, Tensor]:
        """Read one token: its inputs u [channels] and gates [2 * v_heads]; returns y too.

        Tensors have the same shapes at every call, so that a token's numbers depend on nothing but
        the tokens before it; see `by_row`.
        """
        window = torch.cat([state.inputs, u[None]])
        wide = self.conv.dtype
        x = (window.to(wide) * self.conv).sum(dim=0)
        if self.conv_bias is not None:
            x = x + self.conv_bias
        if self.shape.rule == RecurrentRule.CONVOLUTION:
            return _TextState(window[1:], state.matrix), x[None]
        x = functional.silu(x)
        q, k, v = _heads(x, self.shape)
        beta, gate = gates.to(wide).chunk(2)
        kept = torch.exp(-self.decay * functional.softplus(gate + self.dt_bias))
        matrix = state.matrix * kept[:, None, None]
        found = (matrix * k[:, :, None]).sum(dim=1)
        change = (v - found) * torch.sigmoid(beta)[:, None]
        matrix = matrix + k[:, :, None] * change[:, None, :]
        return _TextState(window[1:], matrix), (matrix * q[:, :, None]).sum(dim=1)


def _heads(x: Tensor, shape: DeltaShape) -> tuple[Tensor, Tensor, Tensor]:
    """Split x [channels] into q and k [v_heads, k_dim], normed, and v [v_heads, v_dim]."""
    width = shape.k_heads * shape.k_dim
    q, k, v = x.split_with_sizes([width, width, shape.v_heads * shape.v_dim])
    q, k = (one.view(shape.k_heads, shape.k_dim) for one in (q, k))
    q, k = (one * torch.rsqrt((one * one).sum(1, keepdim=True) + NORM_EPS) for one in (q, k))
    repeats = shape.v_heads // shape.k_heads
    q, k = (one.repeat_interleave(repeats, dim=0) for one in (q * shape.k_dim**-0.5, k))
    return q, k, v.view(shape.v_heads, shape.v_dim)


def gated_delta(
    u: Tensor, gates: Tensor, params: DeltaParams, state: DeltaState, layer: int, rows: DeltaRows
) -> Tensor:
    """See `Backend.gated_delta`."""
    one, shape = _Layer.of(params, layer), params.shape
    out = u.new_empty(len(u), shape.v_heads, shape.v_dim)
    starts, slots = rows.cu_seqlens.tolist(), rows.slots.tolist()
    for request in range(rows.batch_size):
        first, end = starts[request : request + 2]
        if first == end:
            continue
        slot = slots[first]
        states = [_TextState.of(state, layer, slot)]
        parents = _parents(rows.ancestry, request, end - first)
        for node, parent in enumerate(parents):
            after, out[first + node] = one.advance(
                states[parent], u[first + node], gates[first + node]
            )
            states.append(after)
        kept = end - first if request < rows.num_chunks else 1
        state.inputs[layer, slot], state.matrices[layer, slot] = states[kept]
        if kept < end - first:
            state.drafted[layer, slot, : end - first - 1] = u[first + 1 : end]
            state.drafted_gates[layer, slot, : end - first - 1] = gates[first + 1 : end]
    return out


def _parents(ancestry: Tensor | None, request: int, count: int) -> list[int]:
    """Return, for each of a request's rows, the state that it follows; 0: before the first."""
    if ancestry is None:
        return list(range(count))
    marks = ancestry[request].tolist()
    return [max((i + 1 for i in range(node) if marks[node][i]), default=0) for node in range(count)]


def keep_drafted(
    params: DeltaParams, state: DeltaState, slots: Tensor, path: Tensor | None, accepted: Tensor
) -> None:
    """See `Backend.keep_drafted`."""
    counts, nodes = accepted.tolist(), None if path is None else path.tolist()
    for request, slot in enumerate(slots.tolist()):
        chosen = range(1, counts[request] + 1)
        if nodes is not None:
            chosen = nodes[request][1 : counts[request] + 1]
        for layer in range(len(params.conv)):
            one = _Layer.of(params, layer)
            after = _TextState.of(state, layer, slot)
            for node in chosen:
                drafted = state.drafted[layer, slot, node - 1]
                after, _ = one.advance(after, drafted, state.drafted_gates[layer, slot, node - 1])
            state.inputs[layer, slot], state.matrices[layer, slot] = after
