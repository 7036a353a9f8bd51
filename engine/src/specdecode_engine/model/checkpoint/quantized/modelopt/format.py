"""nvidia-modelopt: `quant_method` is `modelopt`, and an algorithm names the layout.

A linear map of I inputs and O outputs has `weight` and `weight_scale`:

| algorithm | `weight` | `weight_scale` |
|---|---|---|
| FP8 | [O, I] float8_e4m3fn | [] |
| FP8_PER_CHANNEL_PER_TOKEN | [O, I] float8_e4m3fn | [O] |
| FP8_PB_WO | [O, I] float8_e4m3fn | [O / 128, 1, I / 128, 1], with smaller last blocks |
| MXFP8 | [O, I] float8_e4m3fn | [O, I / 32] uint8, exponents (E8M0) |
| NVFP4, W4A16_NVFP4 | [O, I / 2] uint8, two E2M1 in a byte | [O, I / 16] float8_e4m3fn |
| MXFP4 | [O, I / 2] uint8, two E2M1 in a byte | [O, I / 32] uint8, exponents (E8M0) |
| W4A16_AWQ, W4A8_AWQ | [O / 2, I] uint8, two rows in a byte | [O, I / g] |

Scales are float32 where no type is named. Lower bits come first; integers of AWQ are signed.
Weights of NVFP4 are E2M1 * (weight_scale * weight_scale_2), where `weight_scale_2` [] is float32:
the product in brackets comes first. `weight_scale_2` of W4A8_AWQ belongs to products in float8, and
is not used here. `pre_quant_scale` [I] multiplies the inputs of a map; here it multiplies the
columns of its dequantized weight, as the last product in float32.

A scale of 0 gives 0: a weight of zeros is stored as NaN with scale 0.

Source: NVIDIA/Model-Optimizer 0.47, `torch/export/quant_utils.py`, `torch/quantization/qtensor/`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Shape, TensorError
from specdecode_engine.model.checkpoint.quantized.packing import exponent_scales, unpack_fp4
from specdecode_engine.model.checkpoint.quantized.weight import (
    MISFIT,
    Blocks,
    Headers,
    KeptQuantization,
    Parts,
    QuantizedRows,
    QuantizedWeight,
    float4_rows,
    kept_float4,
    kept_float8,
    kept_precisions,
    scaled,
)
from specdecode_kernels import Precision

FP8 = "FP8"
FP8_BY_CHANNEL = "FP8_PER_CHANNEL_PER_TOKEN"
FP8_BLOCKS = "FP8_PB_WO"
MXFP8 = "MXFP8"
NVFP4 = ("NVFP4", "W4A16_NVFP4")
MXFP4 = "MXFP4"
AWQ = ("W4A16_AWQ", "W4A8_AWQ")
FLOAT8 = (FP8, FP8_BY_CHANNEL, FP8_BLOCKS, MXFP8)
FLOAT4 = (*NVFP4, MXFP4)
ALGORITHMS = (*FLOAT8, *FLOAT4, *AWQ)
GROUPS = {FP8_BLOCKS: 128, MXFP8: 32, MXFP4: 32, **dict.fromkeys(NVFP4, 16)}
"""Inputs that share a scale, where the algorithm fixes them."""
STORED = (torch.float8_e4m3fn, torch.uint8)
EXPONENTS = (torch.uint8, torch.float8_e8m0fnu)
WIDE = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class ModeloptScheme:
    """The layout of some weights; `group_size` inputs share a scale, None: all of them."""

    algorithm: str
    group_size: int | None = None

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The form in which weights are kept, if any."""
        if self.algorithm in FLOAT8:
            return kept_float8(self.group_size)
        if self.algorithm in FLOAT4:
            return kept_float4(GROUPS[self.algorithm])
        return kept_precisions(4, self.group_size)[:1]

    def find(self, headers: Headers, module: str) -> QuantizedWeight:
        """Return the weight of a module.

        Raises:
            TensorError: a tensor is missing, or of another type or shape.
        """
        name = f"{module}.weight"
        _need_type(headers, name, torch.float8_e4m3fn if self.algorithm in FLOAT8 else torch.uint8)
        shape = self._plain_shape(headers, name)
        layout = ModeloptWeight(self, shape, self._blocks(shape))
        parts = {"weight": name, **self._find_scales(headers, module, layout)}
        is_kept = bool(self.precisions) and "pre_quant_scale" not in parts
        return QuantizedWeight(
            name=name,
            shape=shape,
            parts=parts,
            dequantize_rows=layout.dequantize_rows,
            row_multiple=2 if self.algorithm in AWQ else 1,
            kept=KeptQuantization(self.precisions[0], layout.kept_rows) if is_kept else None,
        )

    def _plain_shape(self, headers: Headers, name: str) -> Shape:
        shape = headers.tensors[name].shape
        if len(shape) != 2:
            raise headers.misfit(name, "a quantized weight is a matrix")
        rows, columns = shape
        if self.algorithm in AWQ:
            rows *= 2
        elif self.algorithm not in FLOAT8:
            columns *= 2
        if self.algorithm != FP8_BLOCKS and columns % (self.group_size or 1):
            fault = f"{columns} inputs do not come in groups of {self.group_size}"
            raise headers.misfit(name, f"{fault} ({self.algorithm})")
        return rows, columns

    def _blocks(self, shape: Shape) -> Blocks:
        if self.algorithm == FP8:
            return Blocks(*shape)
        rows = GROUPS[FP8_BLOCKS] if self.algorithm == FP8_BLOCKS else 1
        return Blocks(rows, self.group_size or shape[1])

    def _find_scales(
        self, headers: Headers, module: str, layout: "ModeloptWeight"
    ) -> dict[str, str]:
        rows, columns = layout.blocks.grid(layout.shape)
        shapes: tuple[Shape, ...] = ((rows, columns),)
        if self.algorithm == FP8_BLOCKS:
            shapes = ((rows, 1, columns, 1), *shapes)
        elif self.algorithm in (FP8, FP8_BY_CHANNEL):
            shapes = layout.blocks.stored_shapes(layout.shape)
        parts = {"scale": headers.need(f"{module}.weight_scale", *shapes)}
        _need_type(headers, parts["scale"], *self._scale_types())
        if self.algorithm in NVFP4:
            parts["scale_2"] = headers.need(f"{module}.weight_scale_2", (), (1,))
        elif f"{module}.weight_scale_2" in headers.tensors:
            parts["unused_scale_2"] = headers.need(f"{module}.weight_scale_2", (), (1,))
        if f"{module}.pre_quant_scale" in headers.tensors:
            inputs = layout.shape[1]
            parts["pre_quant_scale"] = headers.need(f"{module}.pre_quant_scale", (inputs,))
        for part in ("scale_2", "pre_quant_scale"):
            if part in parts:
                _need_type(headers, parts[part], *WIDE)
        return parts

    def _scale_types(self) -> tuple[torch.dtype, ...]:
        if self.algorithm in (MXFP8, MXFP4):
            return EXPONENTS
        return (torch.float8_e4m3fn,) if self.algorithm in NVFP4 else WIDE


@dataclass(frozen=True, slots=True)
class ModeloptWeight:
    """How the tensors of one weight become rows."""

    scheme: ModeloptScheme
    shape: Shape  # of the plain weight
    blocks: Blocks

    def rows(self, parts: Parts, rows: slice) -> QuantizedRows:
        if self.scheme.algorithm in AWQ:
            packed = parts["weight"][rows.start // 2 : rows.stop // 2]
            values = torch.stack([packed & 0xF, packed >> 4], dim=1).flatten(0, 1).int()
            values = (values ^ 8) - 8
        else:
            values = parts["weight"][rows]
        return QuantizedRows(values, self._scales(parts, rows), None)

    def kept_rows(self, parts: Parts, rows: slice) -> QuantizedRows:
        """Return rows with their scales as stored where these are bytes."""
        if self.scheme.algorithm not in FLOAT4:
            return self.rows(parts, rows)
        return float4_rows(parts["weight"][rows], parts["scale"][rows], parts.get("scale_2"))

    def dequantize_rows(self, parts: Parts, rows: slice) -> Tensor:
        values, scales, *_ = self.rows(parts, rows)
        is_packed = self.scheme.algorithm in FLOAT4
        numbers = unpack_fp4(values) if is_packed else values.float()
        columns = torch.arange(self.shape[1], device=values.device) // self.blocks.columns
        plain = scaled(numbers, scales.index_select(1, columns))
        if "pre_quant_scale" in parts:
            plain = plain * parts["pre_quant_scale"].float()
        return plain

    def _scales(self, parts: Parts, rows: slice) -> Tensor:
        """Return the scales [rows, groups] of some rows, in float32."""
        stored = parts["scale"].reshape(self.blocks.grid(self.shape))
        if self.blocks.rows > 1:
            return self.blocks.by_output(stored, self.shape, rows)
        scales = exponent_scales(stored[rows])
        return scales * parts["scale_2"].float() if "scale_2" in parts else scales


@dataclass(frozen=True, slots=True)
class ModeloptFormat:
    """The layout of all weights, or that of each layer, which may be the parent of modules.

    `excluded` are names of modules or shell patterns of them.
    """

    scheme: ModeloptScheme | None  # None: `layers` alone
    layers: Mapping[str, ModeloptScheme] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()

    @property
    def schemes(self) -> tuple[ModeloptScheme, ...]:
        """All different layouts."""
        return tuple(dict.fromkeys([self.scheme] if self.scheme else self.layers.values()))

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return tuple(dict.fromkeys(form for one in self.schemes for form in one.precisions))

    def find(self, headers: Headers) -> Iterator[QuantizedWeight]:
        for name, stored in headers.tensors.items():
            if name.endswith(".weight") and stored.dtype in STORED:
                module = name.removesuffix(".weight")
                yield self._scheme_of(headers, module).find(headers, module)

    def _scheme_of(self, headers: Headers, module: str) -> ModeloptScheme:
        pattern = next((one for one in self.excluded if fnmatchcase(module, one)), None)
        if pattern is not None:
            fault = f"{module}.weight is quantized, but excluded from quantization by {pattern!r}"
            raise TensorError(headers.folder, fault, MISFIT)
        if self.scheme is not None:
            return self.scheme
        parent = module
        while parent and parent not in self.layers:
            parent = parent.rpartition(".")[0]
        if not parent:
            fault = f"{module}.weight is quantized, but quantized_layers has no algorithm for it"
            raise TensorError(headers.folder, fault, MISFIT)
        return self.layers[parent]


def _need_type(headers: Headers, name: str, *dtypes: torch.dtype) -> None:
    stored = headers.tensors[name].dtype
    if stored not in dtypes:
        wanted = " or ".join(map(str, dtypes))
        raise TensorError(headers.folder, f"{name} is of type {stored} instead of {wanted}", MISFIT)
