"""Modules that replace those of transformers: each row's bits depend on the row alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from specdecode_engine.model.layers.layers import Linear
from specdecode_kernels import Backend
from specdecode_kernels.torch.by_row import by_row
from specdecode_kernels.torch.elementwise import accumulation_dtype


class RowModule(nn.Module):
    """A module computed by the ops of a backend; the audit does not look into it.

    It is called without the bookkeeping of torch, which costs more than small ops do.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._forward_hooks or self._forward_pre_hooks:  # those of the audit
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)


class RowLinear(RowModule):
    """A linear map of [..., inputs]."""

    def __init__(self, linear: Linear) -> None:
        super().__init__()
        self.linear = linear

    @property
    def weight(self) -> Tensor:
        """The map's weight [outputs, inputs]; a copy if it is packed."""
        return self.linear.plain_weight().to(self.linear.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        mapped = self.linear(x.reshape(-1, x.shape[-1]))
        return mapped.view(*x.shape[:-1], mapped.shape[-1])


@dataclass(slots=True, eq=False)
class SharedLinear:
    """Linear maps of one input as one map; computed at the first use of an input.

    `sizes` are the outputs of each. Parts not yet taken are kept until the next input.
    """

    linear: Linear
    sizes: list[int]
    _input: Tensor | None = None
    _parts: dict[int, Tensor] = field(default_factory=dict)

    def take(self, index: int, x: Tensor) -> Tensor:
        """Return the part `index` of the map of x [..., inputs]."""
        if x is not self._input or index not in self._parts:
            mapped = self.linear(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)
            self._input = x
            self._parts = dict(enumerate(mapped.split_with_sizes(self.sizes, dim=-1)))
        part = self._parts.pop(index)
        if not self._parts:
            self._input = None
        return part


class RowLinearPart(RowModule):
    """One of several linear maps of the same input."""

    def __init__(self, shared: SharedLinear, index: int) -> None:
        super().__init__()
        self.shared = shared
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return self.shared.take(self.index, x)


class RowRmsNorm(RowModule):
    """Root-mean-square norm over the last dimension; weight [dim], or ones if there is none."""

    def __init__(self, ops: Backend, weight: Tensor | None, eps: float) -> None:
        super().__init__()
        self.ops = ops
        self.weight = weight  # no parameter: those are looked up in a dictionary of their own
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:  # a norm without a weight may serve several widths
            return self.ops.rms_norm(x, x.new_ones(x.shape[-1]), self.eps)
        return self.ops.rms_norm(x, self.weight, self.eps)


class RowLayerNorm(RowModule):
    """Mean-and-variance norm over the last dimension, in wide arithmetic.

    Weight and bias are of any shape that broadcasts to the input's last dimensions.
    """

    def __init__(self, weight: Tensor | None, bias: Tensor | None, eps: float) -> None:
        super().__init__()
        self.weight = None if weight is None else nn.Parameter(weight, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        rows = x.to(accumulation_dtype(x.dtype)).reshape(-1, x.shape[-1])
        norm = partial(nn.functional.layer_norm, normalized_shape=x.shape[-1:], eps=self.eps)
        normed = by_row(norm, rows).view(x.shape)
        if self.weight is not None:
            normed = normed * self.weight
        if self.bias is not None:
            normed = normed + self.bias
        return normed.to(x.dtype)


class RowActivation(RowModule):
    """An activation, computed row by row on a CPU."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return by_row(self.function, x.reshape(-1, x.shape[-1])).view(x.shape)


class RowSilu(RowModule):
    """x * sigmoid(x), as the gate of `silu_and_mul` with a factor of one."""

    def __init__(self, ops: Backend, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.ops = ops
        self.one = nn.Buffer(torch.ones(1, 1, dtype=dtype, device=device), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        factors = self.one.expand(1, rows.shape[1]).contiguous().expand(rows.shape)
        return self.ops.silu_and_mul(rows, factors).view(x.shape)


class RowSoftcap(RowModule):
    """cap * tanh(x / cap), row by row on a CPU."""

    def __init__(self, cap: float) -> None:
        super().__init__()
        self.cap = cap

    def forward(self, x: Tensor) -> Tensor:
        return by_row(torch.tanh, x / self.cap) * self.cap


class RowGatedMlp(RowModule):
    """down(silu(gate(x)) * up(x)), with gate and up one map."""

    def __init__(self, ops: Backend, gate_up: Linear, down: Linear) -> None:
        super().__init__()
        self.ops = ops
        self.gate_up = gate_up
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        gate, up = self.gate_up(rows).chunk(2, dim=-1)
        mapped = self.down(self.ops.silu_and_mul(gate, up))
        return mapped.view(*x.shape[:-1], mapped.shape[-1])


@dataclass(slots=True, eq=False)
class RotaryRows:
    """Cosines and sines of some rows: a pair (cos, sin) [1, rows, dim] for transformers' modules.

    Where both halves of a head turn by the same angles, one half [rows, dim / 2] is kept, in the
    type of `Backend.apply_rope`; the pair is made when a module reads it.
    """

    halves: tuple[Tensor, Tensor] | None
    dtype: torch.dtype  # of the pair
    rows: Tensor  # [rows] i64, of the table: positions, where there is one table
    _padded: tuple[Tensor, Tensor] | None = None
    _pair: tuple[Tensor, Tensor] | None = None

    @classmethod
    def of_pair(cls, cos: Tensor, sin: Tensor, rows: Tensor) -> "RotaryRows":
        return cls(None, cos.dtype, rows, _pair=(cos[None], sin[None]))

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self.pair())

    def __getitem__(self, index: int) -> Tensor:
        return self.pair()[index]

    def halves_of(self, head_dim: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines [rows, head_dim / 2], of angles 0 where a head has more."""
        assert self.halves is not None
        missing = head_dim // 2 - self.halves[0].shape[1]
        if not missing:
            return self.halves
        if self._padded is None or self._padded[0].shape[1] != head_dim // 2:
            cos, sin = self.halves
            pad = torch.nn.functional.pad
            self._padded = pad(cos, (0, missing), value=1.0), pad(sin, (0, missing))
        return self._padded

    def pair(self) -> tuple[Tensor, Tensor]:
        if self._pair is None:
            assert self.halves is not None
            cos, sin = (torch.cat((half, half), dim=-1)[None] for half in self.halves)
            self._pair = cos.to(self.dtype), sin.to(self.dtype)
        return self._pair


class RotaryTable(RowModule):
    """Cosines and sines of all positions, in one table after the other; see `RotaryLimits`."""

    def __init__(self, tables: dict[str | None, tuple[Tensor, Tensor]], dtype: torch.dtype) -> None:
        super().__init__()
        # By layer type, None where all layers share one: [rows, dim / 2], or [rows, dim].
        self.has_halves = all(
            have_equal_halves(table) for pair in tables.values() for table in pair
        )
        self.tables = {
            name: (one_half(cos), one_half(sin))
            if self.has_halves
            else (cos.to(dtype), sin.to(dtype))
            for name, (cos, sin) in tables.items()
        }
        self.dtype = dtype

    def angles_of_halves(self) -> set[int | None]:
        """Return how many angles turn half a head, of each layer type; None for other rotations."""
        return {cos.shape[1] if self.has_halves else None for cos, _ in self.tables.values()}

    def forward(self, x: Tensor, position_ids: Tensor, layer_type: str | None = None) -> RotaryRows:
        cos, sin = self.tables[layer_type]
        # A step verifies a few rows past the end of a table; they are cut from the output.
        # Of positions in time, height and width, those of text are equal.
        positions = position_ids[0] if position_ids.dim() == 3 else position_ids
        rows = positions.flatten().clamp(max=cos.shape[0] - 1)
        cos, sin = cos.index_select(0, rows), sin.index_select(0, rows)
        if self.has_halves:
            return RotaryRows((cos, sin), self.dtype, rows)
        return RotaryRows.of_pair(cos, sin, rows)


def have_equal_halves(table: Tensor) -> bool:
    """Whether both halves of a head turn by the same angles; on meta nothing can be compared."""
    first, second = table.chunk(2, dim=-1)
    return first.shape == second.shape and (table.is_meta or torch.equal(first, second))


def one_half(table: Tensor) -> Tensor:
    return table[:, : table.shape[1] // 2].contiguous()


class LayerList(nn.ModuleList):
    """Layers of which a slice of all is the list itself.

    transformers' models take such a slice in every forward; torch would make a module of it.
    """

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice) and index.indices(len(self)) == (0, len(self), 1):
            return self
        return super().__getitem__(index)
