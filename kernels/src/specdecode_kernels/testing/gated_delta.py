"""Random arguments of recurrent layers: parameters, states, and rows of requests."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

import torch
from torch import Tensor

from specdecode_kernels.backend import Backend
from specdecode_kernels.recurrent import DeltaParams, DeltaRows, DeltaShape, DeltaState

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class DeltaForm:
    """What arguments are drawn for."""

    shape: DeltaShape
    dtype: torch.dtype = torch.float32
    layers: int = 2
    slots: int = 4  # with drafted rows; one more is only copied
    nodes: int = 8  # of a draft, root included
    has_bias: bool = False  # of the convolution

    @property
    def wide(self) -> torch.dtype:
        """The type of parameters and matrices."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def draw_params(self, seed: int, device: torch.device = CPU) -> DeltaParams:
        """Draw gates between hardly anything and nearly all."""
        shape, draw = self.shape, _Normal(seed, device)
        conv = draw(self.wide, self.layers, shape.conv_width, shape.channels)
        decay, dt_bias = (draw(self.wide, self.layers, shape.v_heads) for _ in range(2))
        bias = draw(self.wide, self.layers, shape.channels) if self.has_bias else None
        return DeltaParams(shape, conv * shape.conv_width**-0.5, decay.exp(), dt_bias, bias)

    def draw_state(self, seed: int, device: torch.device = CPU) -> DeltaState:
        """Draw states of all slots; of drafted rows nothing is known."""
        shape, draw = self.shape, _Normal(seed, device)
        of_slots, of_all = (self.layers, self.slots), (self.layers, self.slots + 1)
        inputs = draw(self.dtype, *of_all, shape.conv_width - 1, shape.channels)
        matrices = draw(self.wide, *of_all, shape.v_heads, shape.k_dim, shape.v_dim)
        drafted = inputs.new_full((*of_slots, self.nodes - 1, shape.channels), torch.nan)
        gates = inputs.new_full((*of_slots, self.nodes - 1, shape.gates), torch.nan)
        return DeltaState(inputs, matrices * 0.3, drafted, gates)

    def draw_inputs(
        self, rows: int, seed: int, device: torch.device = CPU
    ) -> tuple[Tensor, Tensor]:
        """Draw u and gates of so many rows, parts of one wider tensor, as of a projection."""
        channels, gates = self.shape.channels, self.shape.gates
        both = _Normal(seed, device)(self.dtype, rows, channels + gates)
        return both[:, :channels], both[:, channels:]


class _Normal:
    """Normal numbers, the same on every device."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._device = device

    def __call__(self, dtype: torch.dtype, *shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=self._generator, dtype=torch.float64)
        return drawn.to(self._device, dtype)


def copied(state: DeltaState) -> DeltaState:
    """Copy a state, for calls that change it."""
    return replace(state, **{one.name: getattr(state, one.name).clone() for one in fields(state)})


def delta_rows(
    slots: Sequence[int],
    counts: Sequence[int],
    num_chunks: int,
    ancestry: Tensor | None = None,
    device: torch.device = CPU,
) -> DeltaRows:
    """Return the rows of requests with these slots and numbers of rows."""
    owners = [slot for slot, count in zip(slots, counts, strict=True) for _ in range(count)]
    starts = torch.tensor([0, *accumulate(counts)], device=device)
    owned = torch.tensor(owners, dtype=torch.int64, device=device)
    return DeltaRows(owned, starts, len(slots), num_chunks, ancestry)


def ancestry_of(trees: Sequence[Sequence[int]], device: torch.device = CPU) -> Tensor:
    """Mark the ancestors of nodes [B, N, N] from their parents; a root is its own parent."""
    marks = torch.zeros(len(trees), len(trees[0]), len(trees[0]), dtype=torch.bool)
    for tree, parents in enumerate(trees):
        for node, parent in enumerate(parents):
            marks[tree, node] = marks[tree, parent]
            marks[tree, node, node] = True
    return marks.to(device)


def run_gated_delta(ops: Backend, form: DeltaForm, rows: DeltaRows, seed: int) -> Tensor:
    """Run the last layer on drawn arguments; returns y, then the states, flattened."""
    device = rows.slots.device
    state, layer = form.draw_state(seed, device), form.layers - 1
    u, gates = form.draw_inputs(len(rows.slots), seed + 1, device)
    y = ops.gated_delta(u, gates, form.draw_params(seed + 2, device), state, layer, rows)
    kept = state.inputs.flatten().to(form.wide), state.matrices.flatten()
    return torch.cat([y.flatten().to(form.wide), *kept])
