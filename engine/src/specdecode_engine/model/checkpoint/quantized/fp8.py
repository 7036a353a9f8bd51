"""Weights in float8, as DeepSeek and Qwen publish them (blocks) and AutoFP8 wrote them (tensors).

A weight [.., O, I] of type float8_e4m3fn or float8_e5m2 is stored under its plain name. Next to it,
`weight_scale_inv` [.., O / 128, I / 128] has the factor of each block, with a smaller last block;
a single factor is named `weight_scale_inv` or `weight_scale`. Plain values are stored values
*times* the factor, despite the name. Factors are floats, or exponents (E8M0).

Source: DeepSeek-V3, `inference/kernel.py` (`weight_dequant`) and README_WEIGHTS.md; transformers,
`integrations/finegrained_fp8.py`; vLLM, `quantization/fp8.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Shape
from specdecode_engine.model.checkpoint.quantized.packing import exponent_scales
from specdecode_engine.model.checkpoint.quantized.weight import (
    Blocks,
    Headers,
    KeptQuantization,
    Parts,
    QuantizedRows,
    QuantizedWeight,
    kept_float8,
    scaled,
)
from specdecode_kernels import Precision

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
SCALES = ("_scale_inv", "_scale")


@dataclass(frozen=True, slots=True)
class Fp8Format:
    """Weights in float8; None: one factor for each weight."""

    blocks: Blocks | None

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return kept_float8(None if self.blocks is None else self.blocks.columns)

    def find(self, headers: Headers) -> Iterator[QuantizedWeight]:
        for name, stored in headers.tensors.items():
            if stored.dtype in FLOAT8 and not name.endswith(SCALES):
                if len(stored.shape) < 2:
                    raise headers.misfit(name, "a weight in float8 is a matrix")
                blocks = self.blocks or Blocks(*stored.shape[-2:])
                is_kept = stored.dtype == torch.float8_e4m3fn and len(stored.shape) <= 3
                names = [name + suffix for suffix in SCALES if name + suffix in headers.tensors]
                scale = names[0] if names else name + SCALES[0]
                yield QuantizedWeight(
                    name=name,
                    shape=stored.shape,
                    parts={
                        "weight": name,
                        "scale": headers.need(scale, *blocks.stored_shapes(stored.shape)),
                    },
                    dequantize_rows=partial(_dequantize_rows, blocks, stored.shape),
                    kept=self._kept(blocks, stored.shape) if is_kept else None,
                )

    def _kept(self, blocks: Blocks, shape: Shape) -> KeptQuantization | None:
        rows = partial(_rows, blocks, shape)
        return KeptQuantization(self.precisions[0], rows) if self.precisions else None


def _rows(blocks: Blocks, shape: Shape, parts: Parts, rows: slice) -> QuantizedRows:
    scales = exponent_scales(parts["scale"])
    return QuantizedRows(parts["weight"][rows], blocks.by_output(scales, shape, rows), None)


def _dequantize_rows(blocks: Blocks, shape: Shape, parts: Parts, rows: slice) -> Tensor:
    scales = exponent_scales(parts["scale"])
    return scaled(parts["weight"][rows].float(), blocks.expand(scales, shape, rows))
