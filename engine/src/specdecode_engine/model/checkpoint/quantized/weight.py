"""One quantized weight: the tensors that it is stored in, and the plain rows made of them."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import safe_open
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Part, Shape, StoredTensor, TensorError
from specdecode_kernels import MXFP4, NVFP4, Precision, QuantizedTensor
from specdecode_kernels.weights import GROUPS, pack_int4

UNQUANTIZED_DTYPE = torch.bfloat16
"""The type of plain weights where neither config.json nor the scales have one."""
CHUNK_ELEMENTS = 1 << 18  # plain values that are dequantized at once: 1 MiB in float32
NAN_OF_FLOAT8 = 0x7F  # of either sign
KV_CACHE = "the KV cache"  # among what a checkpoint quantizes; applied if the cache is float8
INCOMPLETE = "the files are incomplete, download them again"
MISFIT = "take tensors and config.json from the same checkpoint"

Parts = Mapping[str, Tensor]
"""The tensors of one weight, by the names that its format gives to them."""


class QuantizedRows(NamedTuple):
    """Some rows of a quantized weight: factors[o] * scales[o, g] * (values[o, i] - zeros[o, g]).

    With several experts a row has all outputs of one: [rows, outputs, ..].
    """

    values: Tensor
    """[.., inputs] signed integers or float8; float4 [.., inputs / 2], as `QuantizedTensor`."""
    scales: Tensor  # [.., groups] in the type of the `Precision`; or one for all groups
    zeros: Tensor | None = None  # as scales, signed
    factors: Tensor | None = None  # f32, one for each output

    def cut(self, outputs: Part, inputs: slice, group: int) -> "QuantizedRows":
        """Return a part, whose inputs begin with a group and end with one or with the rows.

        Args:
            outputs: of rows, and of the outputs of each expert if there are several.
            group: inputs that share a scale.
        """
        per_byte = 2 if self.values.dtype == torch.float4_e2m1fn_x2 else 1
        columns = slice(inputs.start // per_byte, -(-inputs.stop // per_byte))
        groups = slice(inputs.start // group, -(-inputs.stop // group))

        def by_group(numbers: Tensor) -> Tensor:
            return numbers[(*outputs, groups)] if numbers.shape[-1] > 1 else numbers[outputs]

        zeros = None if self.zeros is None else by_group(self.zeros)
        factors = None if self.factors is None else self.factors[outputs]
        values = self.values[(*outputs, columns)]
        return QuantizedRows(values, by_group(self.scales), zeros, factors)

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


def group_index(stored: Tensor, group: int | None) -> Tensor | None:
    """Return the group of each input [inputs] i64, None if groups are consecutive inputs.

    Args:
        group: inputs of a group; None: all of them.

    Raises:
        ValueError: a number is not that of a group.
    """
    index, size = stored.long(), group or len(stored)
    groups = -(-len(index) // size)
    is_faulty = (index < 0) | (index >= groups)
    if bool(is_faulty.any()):
        place = int(is_faulty.nonzero()[0])
        raise ValueError(
            f"input {place} is in group {int(index[place])}, and there are {groups} groups"
        )
    in_order = torch.arange(len(index), device=index.device) // size
    return None if torch.equal(index, in_order) else index


def float4_rows(packed: Tensor, scales: Tensor, factor: Tensor | None = None) -> QuantizedRows:
    """Return rows of float4 with scales as they are stored: exponents, or float8 times a factor.

    Args:
        packed: u8 [rows, .., inputs / 2].
        scales: [rows, .., groups] of one byte.
        factor: one number; None: scales are exponents (E8M0).
    """
    values = packed.view(torch.float4_e2m1fn_x2)
    if factor is None:
        return QuantizedRows(values, scales.view(torch.float8_e8m0fnu))
    factors = factor.float().reshape(()).expand(len(values))
    return QuantizedRows(values, scales, factors=factors)


@dataclass(frozen=True, slots=True)
class KeptQuantization:
    """The form in which a weight is kept as it is stored, and its rows.

    `groups` returns the group of each input [inputs] i64, None where they are consecutive inputs.
    It may be in any order if `is_shuffled`. The plain tensor of a transposed weight is
    [.., inputs, outputs].
    """

    precision: Precision
    rows: Callable[[Parts, slice], QuantizedRows]
    is_transposed: bool = False
    groups: Callable[[Parts], Tensor | None] | None = None
    is_shuffled: bool = False


def kept_precisions(bits: int, group: int | None) -> tuple[Precision, ...]:
    """Return the forms in which kernels take integers of which `group` inputs share a scale.

    Args:
        group: None: all of them.

    Returns:
        Those without and with zero points, if there are any.
    """
    if bits not in (4, 8) or group not in (None, *GROUPS):
        return ()
    if bits == 8:
        return Precision("int8", group or 0), Precision("int8", group or 0, has_zeros=True)
    # A scale for every output is one for every 128 of its inputs.
    group = group or GROUPS[-1]
    return Precision("int4", group), Precision("int4", group, has_zeros=True)


def kept_float8(group: int | None) -> tuple[Precision, ...]:
    """Return the form in which kernels take float8_e4m3fn, if any; `group` as above."""
    if group is None:
        return (Precision("float8_e4m3fn"),)
    return (Precision("float8_e4m3fn", group),) if group in GROUPS else ()


def kept_float4(group: int) -> tuple[Precision, ...]:
    """Return the form in which kernels take float4: MXFP4, or NVFP4 with its groups of 16."""
    return tuple(one for one in (MXFP4, NVFP4) if one.group == group)


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A plain tensor that a checkpoint stores in other tensors."""

    name: str  # of the plain tensor
    shape: Shape
    parts: Mapping[str, str]  # stored names, by the format's names
    dequantize_rows: Callable[[Parts, slice], Tensor]  # rows of dimension 0, in float32
    row_multiple: int = 1  # rows that one stored word holds
    kept: KeptQuantization | None = None

    def dequantize(self, parts: Parts, into: Tensor, part: Part = ()) -> None:
        """Write a part of the plain tensor, rounded once to the type of `into`, by some rows."""
        for rows, wanted, place in self._chunks(part):
            into[place].copy_(self.dequantize_rows(parts, rows)[(wanted, *part[1:])])

    def read_kept(self, parts: Parts, part: Part = ()) -> QuantizedTensor | None:
        """Return a part as it is stored, read by some rows; zero points are left out if all are 0.

        Args:
            part: its inputs begin and end with groups.

        Returns:
            None where the weight is not kept, also if float8 contains NaN, or if groups are of
            different sizes or an order of inputs is cut.
        """
        if self.kept is None:
            return None
        groups = self.kept.groups(parts) if self.kept.groups is not None else None
        order = None if groups is None else torch.argsort(groups, stable=True)
        precision, ranges = self.kept.precision, self._ranges(part)
        shape, inputs = torch.Size(map(len, ranges)), ranges[-1]
        read = QuantizedTensor.empty(shape, precision, torch.float32, torch.device("cpu"))
        columns, group = slice(inputs.start, inputs.stop), precision.group or read.group
        if groups is not None and order is not None:
            is_regular = torch.equal(groups[order], torch.arange(len(order)) // group)
            if not is_regular or len(inputs) < len(order):
                return None
        rest = tuple(slice(one.start, one.stop) for one in ranges[1:-1])
        for rows, wanted, place in self._chunks(part):
            found = self.kept.rows(parts, rows)
            if order is not None:
                found = found._replace(values=found.values.index_select(-1, order))
            cut = found.cut((wanted, *rest), columns, group)
            if read.zeros is None and cut.zeros is not None and bool(cut.zeros.any()):
                return None
            if _has_nan(cut.values):
                cut = cut._replace(values=_clear_unscaled(cut.values, cut.scales, group))
                if _has_nan(cut.values):
                    return None
            _store(cut, read, place)
        is_symmetric = read.zeros is None or not bool(read.zeros.any())
        zeros = None if is_symmetric else read.zeros
        return replace(read, zeros=zeros, order=None if order is None else order.int())

    def _ranges(self, part: Part) -> list[range]:
        """Return which outputs and inputs a part has, and before them which experts."""
        ranges = [range(size)[_at(part, dim)] for dim, size in enumerate(self.shape)]
        is_transposed = self.kept is not None and self.kept.is_transposed
        return [*ranges[:-2], ranges[-1], ranges[-2]] if is_transposed else ranges

    def _chunks(self, part: Part) -> Iterator[tuple[slice, slice, slice]]:
        """Yield rows that are read at once, those of them in the part, and their place there."""
        wanted = range(self.shape[0])[_at(part, 0)]
        row = max(math.prod(self.shape[1:]), 1)
        step = max(CHUNK_ELEMENTS // row // self.row_multiple, 1) * self.row_multiple
        first = wanted.start - wanted.start % self.row_multiple
        for start in range(first, wanted.stop, step):
            stop = min(start + step, self.shape[0])
            begin, end = max(start, wanted.start), min(stop, wanted.stop)
            place = slice(begin - wanted.start, end - wanted.start)
            yield slice(start, stop), slice(begin - start, end - start), place


def _store(rows: QuantizedRows, into: QuantizedTensor, place: slice) -> None:
    """Write rows to their place."""
    into.values[place] = pack_int4(rows.values) if into.format == "int4" else rows.values
    into.scales[place] = rows.scales
    if rows.zeros is not None and into.zeros is not None:
        into.zeros[place] = rows.zeros
    if rows.factors is not None and into.factors is not None:
        into.factors[place] = rows.factors


def _has_nan(values: Tensor) -> bool:
    if values.dtype != torch.float8_e4m3fn:
        return False
    return bool(((values.view(torch.uint8) & NAN_OF_FLOAT8) == NAN_OF_FLOAT8).any())


def _clear_unscaled(values: Tensor, scales: Tensor, group: int) -> Tensor:
    """Return float8 numbers with zeros where the scale is 0, whatever is stored there."""
    groups = torch.arange(values.shape[-1], device=values.device) // group
    is_zero = (scales == 0).expand(*values.shape[:-1], -1)
    is_zero = is_zero.index_select(-1, groups.clamp(max=is_zero.shape[-1] - 1))
    return values.view(torch.uint8).masked_fill(is_zero, 0).view(values.dtype)


def scaled(values: Tensor, scales: Tensor) -> Tensor:
    """Return values * scales in float32, and 0 where the scale is 0, also for NaN."""
    return (values * scales).masked_fill_(scales == 0, 0)


def _at(part: Part, dimension: int) -> slice:
    return part[dimension] if dimension < len(part) else slice(None)


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

    def read_sizes(self, suffix: str) -> dict[str, Shape]:
        """Return the values of the integer tensors with a suffix, by what precedes it.

        Each file is opened once, and its small tensors lie side by side.
        """
        names: dict[Path, list[str]] = {}
        for prefix, _ in self.ending(suffix):
            names.setdefault(self.tensors[prefix + suffix].file, []).append(prefix)
        sizes: dict[str, Shape] = {}
        for file, prefixes in names.items():
            with safe_open(file, framework="pt") as opened:
                for prefix in prefixes:
                    stored = opened.get_tensor(prefix + suffix).flatten()
                    sizes[prefix] = tuple(map(int, stored.tolist()))
        return sizes

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
        """The forms in which weights of the checkpoint may be kept."""
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
        columns = groups
        if columns is None:
            columns = torch.arange(shape[-1], device=scales.device) // self.columns
        return self.by_output(scales, shape, rows).index_select(-1, columns.long())

    def by_output(self, scales: Tensor, shape: Shape, rows: slice) -> Tensor:
        """Return the scales [.., outputs, columns of blocks] of some rows, in float32.

        Rows are outputs, or experts with all of their outputs.
        """
        grid = scales.reshape(self.grid(shape))
        first, last = (rows.start, rows.stop) if len(shape) == 2 else (0, shape[-2])
        outputs = torch.arange(first, last, device=scales.device) // self.rows
        return (grid if len(shape) == 2 else grid[rows]).index_select(-2, outputs).float()
