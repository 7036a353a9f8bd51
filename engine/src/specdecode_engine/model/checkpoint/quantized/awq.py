"""AWQ in its GEMM layout, as AutoAWQ and llm-awq write it.

A linear map of I inputs and O outputs, with g inputs in a group, is stored as

- `qweight` [I, O / 8] int32: integers of 4 bits, of eight outputs in one word,
- `qzeros` [I / g, O / 8] int32: zero points, packed alike,
- `scales` [I / g, O] float16.

Weight [o, i] is scales[i / g, o] * (qweight[i, o] - qzeros[i / g, o]). The eight outputs of a word
are interleaved: from the lowest bits on, it holds 0, 2, 4, 6, 1, 3, 5, 7.

Source: AutoAWQ, `awq/utils/packing_utils.py` and `awq/modules/linear/gemm.py`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.checkpoint.quantized.packing import unpack
from specdecode_engine.model.checkpoint.quantized.weight import (
    Headers,
    KeptQuantization,
    Parts,
    QuantizedRows,
    QuantizedWeight,
    kept_precisions,
)
from specdecode_kernels import Precision
from specdecode_kernels.weights import INT4_OFFSET

BITS = 4
PER_WORD = 8
PART_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True, slots=True)
class AwqFormat:
    """Weights of four bits; `group_size` inputs share a scale, all of them if it is None."""

    group_size: int | None

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return kept_precisions(BITS, self.group_size)

    def find(self, headers: Headers) -> Iterator[QuantizedWeight]:
        for prefix, shape in headers.ending(".qweight"):
            name = f"{prefix}.qweight"
            if len(shape) != 2 or shape[0] % (self.group_size or 1):
                fault = f"the inputs of a matrix come in groups of {self.group_size}"
                raise headers.misfit(name, fault)
            inputs, words = shape
            groups = inputs // (self.group_size or inputs)
            yield QuantizedWeight(
                name=f"{prefix}.weight",
                shape=(words * PER_WORD, inputs),
                parts={
                    "qweight": name,
                    "qzeros": headers.need(f"{prefix}.qzeros", (groups, words)),
                    "scales": headers.need(f"{prefix}.scales", (groups, words * PER_WORD)),
                },
                dequantize_rows=_dequantize_rows,
                row_multiple=PER_WORD,
                kept=KeptQuantization(self.precisions[-1], _rows) if self.precisions else None,
            )


def _rows(parts: Parts, rows: slice) -> QuantizedRows:
    words = slice(rows.start // PER_WORD, rows.stop // PER_WORD)
    integers, zeros = (
        unpack(parts[name][:, words], BITS, PART_OF_OUTPUT).T - INT4_OFFSET
        for name in ("qweight", "qzeros")
    )
    return QuantizedRows(integers, parts["scales"][:, rows].T.float(), zeros)


def _dequantize_rows(parts: Parts, rows: slice) -> Tensor:
    inputs, groups = (len(parts[name]) for name in ("qweight", "scales"))
    part = _rows(parts, rows)
    return part.plain(part.in_order(inputs // groups))
