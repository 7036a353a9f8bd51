"""MXFP4, as OpenAI publishes gpt-oss.

A matrix [O, I] is stored as `NAME_blocks` [O, I / 32, 16] uint8, two E2M1 numbers in a byte, and
`NAME_scales` [O, I / 32] uint8, the exponent (E8M0) of each 32 numbers. With one more dimension in
front the matrices of all experts are in one tensor, whose plain form is [experts, I, O]: that of
transformers' `GptOssExperts`.

Source: openai/gpt-oss, `gpt_oss/torch/weights.py`; transformers, `integrations/mxfp4.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.checkpoint.quantized.packing import exponent_scales, unpack_fp4
from specdecode_engine.model.checkpoint.quantized.weight import (
    Headers,
    KeptQuantization,
    Parts,
    QuantizedRows,
    QuantizedWeight,
    float4_rows,
)
from specdecode_kernels import MXFP4, Precision

BLOCK_BYTES = 16


@dataclass(frozen=True, slots=True)
class Mxfp4Format:
    """Weights of four bits with an exponent for each 32."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return (MXFP4,)

    def find(self, headers: Headers) -> Iterator[QuantizedWeight]:
        for name, stored in headers.ending("_blocks"):
            if len(stored) not in (3, 4) or stored[-1] != BLOCK_BYTES:
                fault = f"blocks are [.., {BLOCK_BYTES}] for a matrix or for those of all experts"
                raise headers.misfit(f"{name}_blocks", fault)
            *experts, outputs, blocks, _ = stored
            inputs = blocks * BLOCK_BYTES * 2
            yield QuantizedWeight(
                name=name,
                shape=(*experts, inputs, outputs) if experts else (outputs, inputs),
                parts={
                    "blocks": f"{name}_blocks",
                    "scales": headers.need(f"{name}_scales", stored[:-1]),
                },
                dequantize_rows=_dequantize_rows,
                kept=KeptQuantization(MXFP4, _rows, is_transposed=bool(experts)),
            )


def _rows(parts: Parts, rows: slice) -> QuantizedRows:
    """Return [rows, inputs], or [rows, outputs, inputs] with experts as rows."""
    return float4_rows(parts["blocks"][rows].flatten(-2), parts["scales"][rows])


def _dequantize_rows(parts: Parts, rows: slice) -> Tensor:
    scales = exponent_scales(parts["scales"][rows]).unsqueeze(-1)
    weights = (unpack_fp4(parts["blocks"][rows]) * scales).flatten(-2)
    return weights if weights.dim() == 2 else weights.mT
