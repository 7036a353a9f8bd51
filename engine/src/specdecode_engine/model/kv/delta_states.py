"""States of recurrent layers: of every running request, in all of a target's.

A state belongs to the kept tokens of a request, which it replaces: there is no way back to an
earlier one. So the nodes of a draft leave it alone until it is known which were accepted.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from specdecode_kernels import (
    AttentionMetadata,
    Backend,
    DeltaParams,
    DeltaRows,
    DeltaShape,
    DeltaState,
    RecurrentRule,
)
from specdecode_kernels.torch.elementwise import accumulation_dtype


@dataclass(frozen=True, slots=True)
class DeltaLayers:
    """The recurrent layers of a model, as config.json describes them."""

    count: int
    shape: DeltaShape
    has_bias: bool = False  # of the convolution

    def __str__(self) -> str:
        shape = self.shape
        if shape.rule == RecurrentRule.CONVOLUTION:
            bias = " with biases" if self.has_bias else ""
            return (
                f"{self.count} short convolutions of {shape.channels} channels and "
                f"{shape.conv_width} inputs{bias}"
            )
        return (
            f"{self.count} gated delta nets of {shape.k_heads} key heads of {shape.k_dim}, "
            f"{shape.v_heads} value heads of {shape.v_dim} and {shape.conv_width} inputs"
        )

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of one state."""
        shape, wide = self.shape, accumulation_dtype(dtype).itemsize
        matrices = shape.v_heads * shape.k_dim * shape.v_dim * wide
        inputs = (shape.conv_width - 1) * shape.channels * dtype.itemsize
        return self.count * (matrices + inputs)

    def drafted_bytes(self, nodes: int, dtype: torch.dtype) -> int:
        """Bytes of the drafted rows of a request, of a draft of so many nodes."""
        width = self.shape.channels + self.shape.gates
        return self.count * (nodes - 1) * width * dtype.itemsize


class DeltaView(Protocol):
    """The states as one batch of rows reads and changes them, the same for every layer."""

    def mix(self, layer: int, u: Tensor, gates: Tensor) -> Tensor:
        """Compute a layer, counted without those that attend; see `Backend.gated_delta`."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ForwardView:
    """The rows of one forward; they change the states."""

    states: "DeltaStates"
    rows: DeltaRows

    def mix(self, layer: int, u: Tensor, gates: Tensor) -> Tensor:
        return self.states.ops.gated_delta(
            u, gates, self.states.params, self.states.state, layer, self.rows
        )


class DeltaStates:
    """A slot for each row of the request table, of which row 0 is padding; and cached states.

    Args:
        slots: rows of the request table.
        cached_states: how many are kept for cached prefixes.
        nodes: of the largest draft, root included.
        dtype: of the model.
    """

    def __init__(
        self,
        params: DeltaParams,
        slots: int,
        cached_states: int,
        nodes: int,
        dtype: torch.dtype,
        ops: Backend,
    ) -> None:
        self.params = params
        self.ops = ops
        shape, layers = params.shape, len(params.conv)

        def zeros(*sizes: int, of: torch.dtype = dtype) -> Tensor:
            return torch.zeros(layers, *sizes, dtype=of, device=params.conv.device)

        inputs = shape.conv_width - 1, shape.channels
        matrix = shape.v_heads, shape.k_dim, shape.v_dim
        wide = params.conv.dtype
        self.state = DeltaState(
            inputs=zeros(slots, *inputs),
            matrices=zeros(slots, *matrix, of=wide),
            drafted=zeros(slots, nodes - 1, shape.channels),
            drafted_gates=zeros(slots, nodes - 1, shape.gates),
        )
        self.cached = zeros(cached_states, *inputs), zeros(cached_states, *matrix, of=wide)

    @property
    def _current(self) -> tuple[Tensor, Tensor]:
        """The states of requests, as `cached` ones are."""
        return self.state.inputs, self.state.matrices

    def open(self, slot: int, cached_state: int | None = None) -> None:
        """Start a text: from a cached state, or from its first token."""
        for part, kept in zip(self._current, self.cached, strict=True):
            if cached_state is None:
                part[:, slot].zero_()
            else:
                part[:, slot].copy_(kept[:, cached_state])

    def save(self, slot: int, cached_state: int) -> None:
        """Copy the state of a slot to a cached state."""
        for part, kept in zip(self._current, self.cached, strict=True):
            kept[:, cached_state].copy_(part[:, slot])

    def view(
        self,
        slots: Tensor,
        layout: AttentionMetadata,
        num_chunks: int,
        ancestry: Tensor | None = None,
    ) -> ForwardView:
        """Show the states to the rows of a forward; see `DeltaRows`.

        Args:
            slots: [rows] i64.
            layout: of the same rows.
        """
        starts, batch_size = layout.cu_seqlens_q, len(layout.qo_lens)
        if starts is None:  # all have as many rows
            count = layout.qo_lens[0]
            starts = torch.arange(0, batch_size * count + 1, count, device=slots.device)
        return ForwardView(self, DeltaRows(slots, starts, batch_size, num_chunks, ancestry))

    def keep(self, slots: Tensor, path: Tensor | None, accepted: Tensor) -> None:
        """Fold accepted nodes into the states; see `Backend.keep_drafted`."""
        self.ops.keep_drafted(self.params, self.state, slots, path, accepted)
