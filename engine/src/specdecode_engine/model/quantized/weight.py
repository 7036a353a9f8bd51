"""One quantized weight: the tensors that it is stored in, and the plain rows made of them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint import Shape, StoredTensor, TensorError
from specdecode_kernels import IntegerWeight, Precision
from specdecode_kernels.weights import INT4_GROUPS, pack_int4

UNQUANTIZED_DTYPE = torch.bfloat16
"""The type of plain weights where neither config.json nor the scales have one."""
CHUNK_ELEMENTS = 1 << 18  # plain values that are dequantized at once: 1 MiB in float32
INCOMPLETE = "the files are incomplete, download them again"
MISFIT = "take tensors and config.json from the same checkpoint"

Parts = Mapping[str, Tensor]
"""The tensors of one weight, by the names that its format gives to them."""


class IntegerRows(NamedTuple):
    """Some rows of a weight of integers: scales[o, g] * (values[o, i] - zeros[o, g])."""

    values: Tensor  # [rows, inputs], signed
    scales: Tensor  # [rows, groups] f32
    zeros: Tensor | None  # [rows, groups], signed

    def in_order(self, group: int | None) -> Tensor:
        """Return the group of each input [inputs] i64 where `group` in a row share one."""
        inputs = self.values.shape[1]
        return torch.arange(inputs, device=self.values.device) // (group or inputs)

    def plain(self, groups: Tensor) -> Tensor:
        """Return the weights in float32; `groups` [inputs] i64 has the group of each input."""
        values = self.values
        if self.zeros is not None:
            values = values - self.zeros.index_select(1, groups)
        return values * self.scales.index_select(1, groups)


@dataclass(frozen=True, slots=True)
class KeptIntegers:
    """The form in which the integers of a weight are kept, and their rows.

    `rows` returns None where the groups are not consecutive inputs.
    """

    precision: Precision
    rows: Callable[[Parts, slice], IntegerRows | None]


def kept_precisions(bits: int, group: int | None) -> tuple[Precision, ...]:
    """Return the forms in which kernels take integers of which `group` inputs share a scale.

    Args:
        group: None: all of them.

    Returns:
        Those without and with zero points, as far as there are any.
    """
    if bits == 8:
        return () if group is not None else (Precision(8),)
    # A scale for every output is one for every 128 of its inputs.
    group = INT4_GROUPS[-1] if group is None else group
    if bits != 4 or group not in INT4_GROUPS:
        return ()
    return Precision(4, group), Precision(4, group, has_zeros=True)


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A plain tensor that a checkpoint stores in other tensors."""

    name: str  # of the plain tensor
    shape: Shape
    parts: Mapping[str, str]  # stored names, by the format's names
    dequantize_rows: Callable[[Parts, slice], Tensor]  # rows of dimension 0, in float32
    row_multiple: int = 1  # rows that one stored word holds
    kept: KeptIntegers | None = None

    def dequantize(self, parts: Parts, into: Tensor) -> None:
        """Write the plain tensor, rounded once to the type of `into`, some rows at a time."""
        for rows in self._chunks():
            into[rows].copy_(self.dequantize_rows(parts, rows))

    def read_integers(self, parts: Parts) -> IntegerWeight | None:
        """Return the integers, read some rows at a time; zero points that are all 0 are left out.

        Returns:
            None where the weight has none that are kept.
        """
        if self.kept is None:
            return None
        shape, precision = torch.Size(self.shape), self.kept.precision
        whole = IntegerWeight.empty(shape, precision, torch.float32, torch.device("cpu"))
        for rows in self._chunks():
            part = self.kept.rows(parts, rows)
            if part is None:
                return None
            whole.values[rows] = pack_int4(part.values) if precision.bits == 4 else part.values
            whole.scales[rows] = part.scales
            if part.zeros is not None and whole.zeros is not None:
                whole.zeros[rows] = part.zeros
        is_symmetric = whole.zeros is None or not bool(whole.zeros.any())
        return replace(whole, zeros=None) if is_symmetric else whole

    def _chunks(self) -> Iterator[slice]:
        row = max(math.prod(self.shape[1:]), 1)
        step = max(CHUNK_ELEMENTS // row // self.row_multiple, 1) * self.row_multiple
        for start in range(0, self.shape[0], step):
            yield slice(start, min(start + step, self.shape[0]))


@dataclass(frozen=True, slots=True)
class Headers:
    """The headers of a checkpoint's tensors, as a format looks for its own among them."""

    folder: Path
    tensors: Mapping[str, StoredTensor]

    def ending(self, suffix: str) -> Iterator[tuple[str, Shape]]:
        """Yield what precedes the suffix, and the shape, of tensors with that suffix."""
        for name, stored in self.tensors.items():
            if name.endswith(suffix):
                yield name.removesuffix(suffix), stored.shape

    def need(self, name: str, *shapes: Shape) -> str:
        """Return `name`; raise unless there is such a tensor, of one of the shapes."""
        if name not in self.tensors:
            raise TensorError(self.folder, f"lacks {name}", INCOMPLETE)
        stored = self.tensors[name].shape
        if stored not in shapes:
            wanted = " or ".join(str(list(shape)) for shape in shapes)
            raise TensorError(self.folder, f"{name} is {list(stored)} instead of {wanted}", MISFIT)
        return name

    def misfit(self, name: str, fault: str) -> TensorError:
        """Build the error that a tensor does not fit the format."""
        shape = list(self.tensors[name].shape)
        return TensorError(self.folder, f"{name} is {shape}, but {fault}", MISFIT)


class QuantizedFormat(Protocol):
    """How the weights of one checkpoint are stored."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The forms in which integers of the checkpoint may be kept."""
        ...

    def find(self, headers: Headers) -> Iterator[QuantizedWeight]:
        """Yield all quantized weights.

        Raises:
            TensorError: a tensor of a weight is missing, or does not fit the others.
        """
        ...


@dataclass(frozen=True, slots=True)
class Blocks:
    """Which values of a matrix share one scale: those of a block of rows and columns.

    Scales of a whole tensor, of output channels, of groups of inputs and of square blocks are all
    of this form. The last block of a row or column may be smaller.
    """

    rows: int
    columns: int

    def grid(self, shape: Shape) -> Shape:
        """Return the shape of the scales of a weight [.., outputs, inputs]."""
        *leading, outputs, inputs = shape
        return (*leading, -(-outputs // self.rows), -(-inputs // self.columns))

    def stored_shapes(self, shape: Shape) -> tuple[Shape, ...]:
        """Return the shapes under which such scales are stored: without dimensions of size 1."""
        grid = self.grid(shape)
        squeezed = tuple(size for size in grid if size > 1)
        without_columns = grid[:-1] if grid[-1] == 1 else grid
        scalar: tuple[Shape, ...] = ((1,),) if not squeezed else ()
        return tuple(dict.fromkeys((grid, without_columns, squeezed, *scalar)))

    def expand(
        self, scales: Tensor, shape: Shape, rows: slice, groups: Tensor | None = None
    ) -> Tensor:
        """Return the scale of every value of some rows, in float32.

        Args:
            groups: [inputs] the column of `scales` of each input; by default inputs are in order.
        """
        grid = scales.reshape(self.grid(shape))
        columns = groups
        if columns is None:
            columns = torch.arange(shape[-1], device=scales.device) // self.columns
        if len(shape) == 2:
            outputs = torch.arange(rows.start, rows.stop, device=scales.device)
        else:
            grid, outputs = grid[rows], torch.arange(shape[-2], device=scales.device)
        picked = grid.index_select(-2, outputs // self.rows).float()
        return picked.index_select(-1, columns.long())
