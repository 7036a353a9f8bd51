"""compressed-tensors, as llm-compressor writes it: `quant_method` is `compressed-tensors`.

A linear map of I inputs and O outputs, in the formats that are read:

- `int-quantized`, `float-quantized`, `naive-quantized`: `weight` [O, I] int8 or float8,
  `weight_scale`, and `weight_zero_point` (integers) if it is not symmetric;
- `pack-quantized`: `weight_packed` [O, I * b / 32] int32, integers of b bits with 2^(b-1) added,
  lowest bits first; `weight_scale`; `weight_shape` [2], the numbers O and I; `weight_zero_point`
  [O * b / 32, G] int32, packed alike along the outputs (int8 [O, G] in older files);
  `weight_g_idx` [I] int32, the group of each input, if groups are not consecutive inputs;
- `mxfp4-pack-quantized`: `weight_packed` [O, I / 2] uint8, two E2M1 numbers in a byte;
  `weight_scale` [O, I / 32] uint8, exponents (E8M0);
- `nvfp4-pack-quantized`: the same with `weight_scale` [O, I / 16] float8_e4m3fn, and
  `weight_global_scale` [1] float32, by which scales are divided.

Weight [o, i] is (weight[o, i] - zero point) * scale. Scales are of the whole tensor, of outputs, of
groups of inputs or of blocks: the `strategy` of the config group whose targets have the map.

Source: vllm-project/compressed-tensors 0.20, `compressors/` and
`quantization/lifecycle/forward.py`.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint import Shape, TensorError
from specdecode_engine.model.quantized.fp8 import FLOAT8
from specdecode_engine.model.quantized.packing import exponent_scales, unpack, unpack_fp4
from specdecode_engine.model.quantized.weight import (
    MISFIT,
    Blocks,
    Headers,
    KeptQuantization,
    Parts,
    QuantizedRows,
    QuantizedWeight,
    kept_float8,
    kept_precisions,
)
from specdecode_kernels import Precision

INTEGERS = ("int-quantized", "naive-quantized")
NAIVE = (*INTEGERS, "float-quantized")
PACKED = "pack-quantized"
MXFP4 = "mxfp4-pack-quantized"
NVFP4 = "nvfp4-pack-quantized"
FORMATS = (*NAIVE, PACKED, MXFP4, NVFP4)
GROUPS_OF_FP4 = {MXFP4: 32, NVFP4: 16}
ZERO_POINTS = frozenset({"zero_point", "packed_zero_point"})
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
        if self.is_float:
            return kept_float8(columns) if self.format in NAIVE else ()
        return kept_precisions(self.bits, columns) if self.format in (PACKED, *INTEGERS) else ()

    def blocks_of(self, shape: Shape) -> Blocks:
        rows, columns = self.blocks
        return Blocks(rows or shape[0], columns or shape[1])

    def rank(self, module: str) -> int:
        """Return how closely a target names the module: 3 exactly, 0 not at all."""
        if module in self.targets:
            return 3
        expressions = [each.removeprefix(REGEX) for each in self.targets if each.startswith(REGEX)]
        if any(re.match(expression, module) for expression in expressions):
            return 2
        # Whatever is stored quantized is of the targeted class: nothing but linear maps is read.
        return 1 if any(each.isidentifier() and each[0].isupper() for each in self.targets) else 0


@dataclass(frozen=True, slots=True)
class CompressedTensorsFormat:
    """The schemes of all config groups."""

    schemes: tuple[WeightScheme, ...]

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return tuple(dict.fromkeys(form for one in self.schemes for form in one.precisions))

    def find(self, headers: Headers) -> Iterator[QuantizedWeight]:
        for prefix, shape in headers.ending(".weight_packed"):
            scheme = self._scheme(headers, prefix)
            if len(shape) != 2 or scheme.format in NAIVE:
                fault = f"format {scheme.format} has no such tensor"
                raise headers.misfit(f"{prefix}.weight_packed", fault)
            find = _find_packed if scheme.format == PACKED else _find_fp4
            yield find(headers, prefix, shape, scheme)
        for prefix, shape in headers.ending(".weight"):
            dtype = headers.tensors[f"{prefix}.weight"].dtype
            if dtype == torch.int8 or dtype in FLOAT8:
                scheme = self._scheme(headers, prefix)
                if len(shape) != 2:
                    raise headers.misfit(f"{prefix}.weight", "a quantized weight is a matrix")
                yield _find_naive(headers, prefix, shape, scheme)

    def _scheme(self, headers: Headers, module: str) -> WeightScheme:
        best = max(self.schemes, key=lambda scheme: scheme.rank(module))
        if not best.rank(module):
            fault = f"{module} is quantized, but no target of quantization_config has it"
            raise TensorError(headers.folder, fault, MISFIT)
        return best


def _find_naive(
    headers: Headers, prefix: str, shape: Shape, scheme: WeightScheme
) -> QuantizedWeight:
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


def _find_packed(
    headers: Headers, prefix: str, shape: Shape, scheme: WeightScheme
) -> QuantizedWeight:
    per_word = 32 // scheme.bits
    plain = (shape[0], shape[1] * per_word)
    blocks = scheme.blocks_of(plain)
    parts = {
        "packed": f"{prefix}.weight_packed",
        "scale": headers.need(f"{prefix}.weight_scale", *blocks.stored_shapes(plain)),
        "shape": headers.need(f"{prefix}.weight_shape", (2,)),
    }
    zero, order = f"{prefix}.weight_zero_point", f"{prefix}.weight_g_idx"
    if zero in headers.tensors:
        rows, columns = blocks.grid(plain)
        is_packed = headers.tensors[zero].dtype == torch.int32
        wanted = (-(-rows // per_word), columns) if is_packed else (rows, columns)
        parts["packed_zero_point" if is_packed else "zero_point"] = headers.need(zero, wanted)
    if order in headers.tensors:
        parts["groups"] = headers.need(order, (plain[1],))
    is_kept = order not in headers.tensors
    return _weight(prefix, plain, scheme, parts, per_word, is_kept=is_kept)


def _find_fp4(headers: Headers, prefix: str, shape: Shape, scheme: WeightScheme) -> QuantizedWeight:
    plain = (shape[0], shape[1] * 2)
    blocks = scheme.blocks_of(plain)
    parts = {
        "fp4": f"{prefix}.weight_packed",
        "scale": headers.need(f"{prefix}.weight_scale", blocks.grid(plain)),
    }
    if scheme.format == NVFP4:
        parts["global_scale"] = headers.need(f"{prefix}.weight_global_scale", (1,), ())
    return _weight(prefix, plain, scheme, parts)


def _weight(
    prefix: str,
    shape: Shape,
    scheme: WeightScheme,
    parts: Mapping[str, str],
    row_multiple: int = 1,
    *,
    is_kept: bool = False,
) -> QuantizedWeight:
    has_zeros = not ZERO_POINTS.isdisjoint(parts)
    forms = [one for one in scheme.precisions if is_kept and one.has_zeros == has_zeros]
    kept = KeptQuantization(forms[0], partial(_kept, scheme, shape)) if forms else None
    rows = partial(_dequantize_rows, scheme, shape)
    return QuantizedWeight(f"{prefix}.weight", shape, parts, rows, row_multiple, kept)


def _kept(scheme: WeightScheme, shape: Shape, parts: Parts, rows: slice) -> QuantizedRows:
    blocks = scheme.blocks_of(shape)
    is_naive = "weight" in parts
    values = parts["weight"][rows] if is_naive else _stored_values(scheme, shape, parts, rows)
    scales = blocks.by_output(exponent_scales(parts["scale"]), shape, rows)
    zeros = _zero_points(scheme, shape, parts)
    return QuantizedRows(
        values, scales, None if zeros is None else blocks.by_output(zeros, shape, rows)
    )


def _dequantize_rows(scheme: WeightScheme, shape: Shape, parts: Parts, rows: slice) -> Tensor:
    blocks, groups = scheme.blocks_of(shape), parts.get("groups")
    values = _stored_values(scheme, shape, parts, rows)
    zeros = _zero_points(scheme, shape, parts)
    if zeros is not None:
        values = values - blocks.expand(zeros, shape, rows, groups)
    scales = exponent_scales(parts["scale"])
    if "global_scale" in parts:
        scales = scales / parts["global_scale"].float()
    return values * blocks.expand(scales, shape, rows, groups)


def _zero_points(scheme: WeightScheme, shape: Shape, parts: Parts) -> Tensor | None:
    """Return the zero points, of one shape with the scales."""
    if "packed_zero_point" not in parts:
        return parts.get("zero_point")
    outputs = scheme.blocks_of(shape).grid(shape)[0]
    return _signed(unpack(parts["packed_zero_point"].T, scheme.bits).T[:outputs], scheme.bits)


def _stored_values(scheme: WeightScheme, shape: Shape, parts: Parts, rows: slice) -> Tensor:
    if "fp4" in parts:
        return unpack_fp4(parts["fp4"][rows])
    if "weight" in parts:
        return parts["weight"][rows].float()
    if parts["shape"].tolist() != [*shape]:
        raise ValueError(
            f"weight_shape is {parts['shape'].tolist()}; the packed tensor is of {[*shape]}"
        )
    return _signed(unpack(parts["packed"][rows], scheme.bits), scheme.bits)


def _signed(integers: Tensor, bits: int) -> Tensor:
    return (integers - (1 << (bits - 1))).float()
