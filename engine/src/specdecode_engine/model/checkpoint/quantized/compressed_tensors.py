"""compressed-tensors, as llm-compressor writes it: `quant_method` is `compressed-tensors`.

A linear map of I inputs and O outputs, in the formats that are read:

- `int-quantized`, `float-quantized`, `naive-quantized`: `weight` [O, I] int8 or float8,
  `weight_scale`, and `weight_zero_point` (integers) if it is not symmetric;
- `pack-quantized`: `weight_packed` [O, I * b / 32] int32, integers of b bits with 2^(b-1) added,
  lowest bits first, in whole words a row; `weight_scale`; `weight_shape` [2], the numbers O and I;
  `weight_zero_point` [O * b / 32, G] int32, packed alike along the outputs (int8 [O, G] in older
  files, and of a whole tensor); `weight_g_idx` [I] int32, the group of each input, if groups are
  not consecutive inputs. Since version 0.18 a row is one stream of bits; before, a word had
  32 // b integers, and bits to spare;
- `mxfp4-pack-quantized`: `weight_packed` [O, I / 2] uint8, two E2M1 numbers in a byte;
  `weight_scale` [O, I / 32] uint8, exponents (E8M0);
- `mxfp6-pack-quantized`: the same with four E2M3 numbers in three bytes;
- `mxfp8-quantized`: `weight` [O, I] float8_e4m3fn with the same scales;
- `nvfp4-pack-quantized`: the same with `weight_scale` [O, I / 16] float8_e4m3fn, and
  `weight_global_scale` [1] float32, by which scales are divided.

Weight [o, i] is (weight[o, i] - zero point) * scale. Scales are of the whole tensor, of outputs, of
groups of inputs or of blocks: the `strategy` of the config group whose targets have the map.

Of several targets that have a map, one that is its name decides, else the first expression in the
alphabet, else its class, as in `match_targets`.

Source: vllm-project/compressed-tensors 0.20, `compressors/`, `utils/match.py` and
`quantization/lifecycle/forward.py`; 0.17 for the layout before.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Shape, TensorError
from specdecode_engine.model.checkpoint.quantized.fp8 import FLOAT8
from specdecode_engine.model.checkpoint.quantized.packing import (
    exponent_scales,
    unpack,
    unpack_fp4,
    unpack_fp6,
)
from specdecode_engine.model.checkpoint.quantized.weight import (
    MISFIT,
    Blocks,
    Headers,
    KeptQuantization,
    Parts,
    QuantizedRows,
    QuantizedWeight,
    float4_rows,
    group_index,
    kept_float4,
    kept_float8,
    kept_precisions,
    scaled,
)
from specdecode_kernels import Precision

INTEGERS = ("int-quantized", "naive-quantized")
MXFP8 = "mxfp8-quantized"
NAIVE = (*INTEGERS, "float-quantized", MXFP8)
PACKED = "pack-quantized"
MXFP4 = "mxfp4-pack-quantized"
MXFP6 = "mxfp6-pack-quantized"
NVFP4 = "nvfp4-pack-quantized"
FORMATS = (*NAIVE, PACKED, MXFP4, MXFP6, NVFP4)
FIXED_GROUPS = {MXFP4: 32, MXFP6: 32, MXFP8: 32, NVFP4: 16}
FLOATS_PER_BYTE = {MXFP4: Fraction(2), MXFP6: Fraction(4, 3), NVFP4: Fraction(2)}
ZERO_POINTS = frozenset({"zero_point", "packed_zero_point"})
NO_GROUP = -1
REGEX = "re:"


@dataclass(frozen=True, slots=True)
class WeightScheme:
    """How the weights of one config group are stored.

    `blocks` names rows and columns that share a scale; None stands for all of them.
    """

    format: str
    is_float: bool  # type
    bits: int
    blocks: tuple[int | None, int | None]
    targets: tuple[str, ...]  # names of modules, `re:` expressions, or classes of modules

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The forms in which weights are kept."""
        columns = self.blocks[1]
        if self.format in (MXFP4, NVFP4):
            return kept_float4(FIXED_GROUPS[self.format])
        if self.is_float:
            return kept_float8(columns) if self.format in NAIVE else ()
        return kept_precisions(self.bits, columns) if self.format in (PACKED, *INTEGERS) else ()

    def blocks_of(self, shape: Shape) -> Blocks:
        rows, columns = self.blocks
        return Blocks(rows or shape[0], columns or shape[1])

    def need_groups(self, headers: Headers, name: str, shape: Shape) -> None:
        """Raise unless the inputs come in whole groups; blocks may end partially."""
        rows, columns = self.blocks
        if rows == 1 and columns is not None and shape[1] % columns:
            fault = f"{shape[1]} inputs do not come in groups of {columns}"
            raise headers.misfit(name, fault)

    def words(self, count: int, *, is_stream: bool) -> int:
        """Return the int32 words that integers in a row take."""
        return -(-count * self.bits // 32) if is_stream else -(-count // (32 // self.bits))

    def unpack(self, words: Tensor, count: int, *, is_stream: bool) -> Tensor:
        """Return the first `count` signed integers in rows of words, in float32."""
        order = None if is_stream else range(32 // self.bits)
        integers = unpack(words, self.bits, order)[..., :count]
        return (integers - (1 << (self.bits - 1))).float()


_Targets = tuple[dict[str, WeightScheme], list[str], list[str]]
"""Schemes by target, and which targets are expressions and classes, in order."""


@dataclass(frozen=True, slots=True)
class CompressedTensorsFormat:
    """The schemes of all config groups."""

    schemes: tuple[WeightScheme, ...]
    is_stream: bool = True  # the layout of packed rows where their length fits both

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return tuple(dict.fromkeys(form for one in self.schemes for form in one.precisions))

    def find(self, headers: Headers) -> Iterator[QuantizedWeight]:
        sizes, targets = headers.read_sizes(".weight_shape"), self._targets()
        for prefix, shape in headers.ending(".weight_packed"):
            scheme = self._scheme(targets, headers, prefix)
            if len(shape) != 2 or scheme.format in NAIVE:
                fault = f"format {scheme.format} has no such tensor"
                raise headers.misfit(f"{prefix}.weight_packed", fault)
            if scheme.format == PACKED:
                yield self._find_packed(headers, prefix, scheme, sizes.get(prefix, ()))
            else:
                yield _find_floats(headers, prefix, shape, scheme)
        for prefix, shape in headers.ending(".weight"):
            dtype = headers.tensors[f"{prefix}.weight"].dtype
            if dtype == torch.int8 or dtype in FLOAT8:
                scheme = self._scheme(targets, headers, prefix)
                if len(shape) != 2:
                    raise headers.misfit(f"{prefix}.weight", "a quantized weight is a matrix")
                yield _find_naive(headers, prefix, shape, scheme)

    def _targets(self) -> _Targets:
        by_target = {target: one for one in self.schemes for target in one.targets}
        expressions = sorted(target for target in by_target if target.startswith(REGEX))
        # Whatever is stored quantized is of the targeted class: nothing but linear maps is read.
        classes = sorted(one for one in by_target if one.isidentifier() and one[0].isupper())
        return by_target, expressions, classes

    def _scheme(self, targets: _Targets, headers: Headers, module: str) -> WeightScheme:
        by_target, expressions, classes = targets
        matching = [one for one in expressions if re.match(one.removeprefix(REGEX), module)]
        for target in (module, *matching, *classes):
            if target in by_target:
                return by_target[target]
        fault = f"{module} is quantized, but no target of quantization_config has it"
        raise TensorError(headers.folder, fault, MISFIT)

    def _find_packed(
        self, headers: Headers, prefix: str, scheme: WeightScheme, plain: Shape
    ) -> QuantizedWeight:
        is_stream = self._is_stream(headers, prefix, scheme, plain)
        scheme.need_groups(headers, f"{prefix}.weight_packed", plain)
        blocks = scheme.blocks_of(plain)
        parts = {
            "packed": f"{prefix}.weight_packed",
            "scale": headers.need(f"{prefix}.weight_scale", *blocks.stored_shapes(plain)),
            "shape": f"{prefix}.weight_shape",
        }
        zero, order = f"{prefix}.weight_zero_point", f"{prefix}.weight_g_idx"
        if zero in headers.tensors and headers.tensors[zero].dtype == torch.int32:
            rows, columns = blocks.grid(plain)
            words = scheme.words(rows, is_stream=is_stream)
            parts["packed_zero_point"] = headers.need(zero, (words, columns))
        elif zero in headers.tensors:
            parts["zero_point"] = headers.need(zero, *blocks.stored_shapes(plain))
        if order in headers.tensors:
            parts["groups"] = headers.need(order, (plain[1],))
        return _weight(prefix, plain, scheme, parts, is_kept=True, is_stream=is_stream)

    def _is_stream(self, headers: Headers, prefix: str, scheme: WeightScheme, plain: Shape) -> bool:
        """Whether rows are streams of bits, by their length; raise if neither layout has it."""
        name = f"{prefix}.weight_packed"
        headers.need(f"{prefix}.weight_shape", (2,))
        outputs, inputs = plain
        layouts = (self.is_stream, not self.is_stream)
        shapes = {one: (outputs, scheme.words(inputs, is_stream=one)) for one in layouts}
        headers.need(name, *dict.fromkeys(shapes.values()))
        return next(one for one, shape in shapes.items() if headers.tensors[name].shape == shape)


def _find_naive(
    headers: Headers, prefix: str, shape: Shape, scheme: WeightScheme
) -> QuantizedWeight:
    scheme.need_groups(headers, f"{prefix}.weight", shape)
    scale_shapes = scheme.blocks_of(shape).stored_shapes(shape)
    parts = {
        "weight": f"{prefix}.weight",
        "scale": headers.need(f"{prefix}.weight_scale", *scale_shapes),
    }
    zero = f"{prefix}.weight_zero_point"
    if zero in headers.tensors:
        parts["zero_point"] = headers.need(zero, *scale_shapes)
    wanted = torch.float8_e4m3fn if scheme.is_float else torch.int8
    is_kept = headers.tensors[f"{prefix}.weight"].dtype == wanted
    return _weight(prefix, shape, scheme, parts, is_kept=is_kept)


def _find_floats(
    headers: Headers, prefix: str, shape: Shape, scheme: WeightScheme
) -> QuantizedWeight:
    plain = (shape[0], int(shape[1] * FLOATS_PER_BYTE[scheme.format]))
    scheme.need_groups(headers, f"{prefix}.weight_packed", plain)
    blocks = scheme.blocks_of(plain)
    parts = {
        "floats": f"{prefix}.weight_packed",
        "scale": headers.need(f"{prefix}.weight_scale", blocks.grid(plain)),
    }
    if scheme.format == NVFP4:
        parts["global_scale"] = headers.need(f"{prefix}.weight_global_scale", (1,), ())
    return _weight(prefix, plain, scheme, parts, is_kept=True)


def _weight(
    prefix: str,
    shape: Shape,
    scheme: WeightScheme,
    parts: Mapping[str, str],
    *,
    is_kept: bool = False,
    is_stream: bool = True,
) -> QuantizedWeight:
    has_zeros = not ZERO_POINTS.isdisjoint(parts)
    forms = [one for one in scheme.precisions if is_kept and one.has_zeros == has_zeros]
    layout = _Layout(scheme, shape, is_stream)
    kept = None
    if forms:
        is_shuffled = "groups" in parts
        kept = KeptQuantization(
            forms[0], layout.kept, groups=layout.groups, is_shuffled=is_shuffled
        )
    return QuantizedWeight(f"{prefix}.weight", shape, parts, layout.dequantize_rows, kept=kept)


@dataclass(frozen=True, slots=True)
class _Layout:
    """How the parts of one weight become rows."""

    scheme: WeightScheme
    shape: Shape  # of the plain weight
    is_stream: bool

    def kept(self, parts: Parts, rows: slice) -> QuantizedRows:
        if "floats" in parts:  # scales are divided by the global one
            factor = 1 / parts["global_scale"].float() if "global_scale" in parts else None
            return float4_rows(parts["floats"][rows], parts["scale"][rows], factor)
        blocks = self.scheme.blocks_of(self.shape)
        values = parts["weight"][rows] if "weight" in parts else self._values(parts, rows)
        scales = blocks.by_output(exponent_scales(parts["scale"]), self.shape, rows)
        zeros = self._zero_points(parts)
        return QuantizedRows(
            values, scales, None if zeros is None else blocks.by_output(zeros, self.shape, rows)
        )

    def groups(self, parts: Parts) -> Tensor | None:
        """Return the group of each input; an index of -1 stands for no order of its own."""
        if "groups" not in parts or bool((parts["groups"] == NO_GROUP).any()):
            return None
        return group_index(parts["groups"], self.scheme.blocks[1])

    def dequantize_rows(self, parts: Parts, rows: slice) -> Tensor:
        blocks, groups = self.scheme.blocks_of(self.shape), self.groups(parts)
        values = self._values(parts, rows)
        zeros = self._zero_points(parts)
        if zeros is not None:
            values = values - blocks.expand(zeros, self.shape, rows, groups)
        scales = exponent_scales(parts["scale"])
        if "global_scale" in parts:
            scales = scales / parts["global_scale"].float()
        return scaled(values, blocks.expand(scales, self.shape, rows, groups))

    def _zero_points(self, parts: Parts) -> Tensor | None:
        """Return the zero points, of one shape with the scales."""
        if "packed_zero_point" not in parts:
            return parts.get("zero_point")
        outputs = self.scheme.blocks_of(self.shape).grid(self.shape)[0]
        packed = parts["packed_zero_point"].T
        return self.scheme.unpack(packed, outputs, is_stream=self.is_stream).T

    def _values(self, parts: Parts, rows: slice) -> Tensor:
        if "weight" in parts:
            return parts["weight"][rows].float()
        if "floats" in parts:
            unpack_floats = unpack_fp6 if self.scheme.format == MXFP6 else unpack_fp4
            return unpack_floats(parts["floats"][rows])
        return self.scheme.unpack(parts["packed"][rows], self.shape[1], is_stream=self.is_stream)
