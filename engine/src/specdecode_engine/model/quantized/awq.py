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

from specdecode_engine.model.quantized.packing import unpack
from specdecode_engine.model.quantized.weight import Headers, Parts, QuantizedWeight

BITS = 4
PER_WORD = 8
PART_OF_OUTPUT = (0, 4, 1, 5, 2, 6, 3, 7)


@dataclass(frozen=True, slots=True)
class AwqFormat:
    """Weights of four bits; `group_size` inputs share a scale, all of them if it is None."""

    group_size: int | None

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
            )


def _dequantize_rows(parts: Parts, rows: slice) -> Tensor:
    words = slice(rows.start // PER_WORD, rows.stop // PER_WORD)
    integers = unpack(parts["qweight"][:, words], BITS, PART_OF_OUTPUT)  # [inputs, rows]
    zeros = unpack(parts["qzeros"][:, words], BITS, PART_OF_OUTPUT)  # [groups, rows]
    scales = parts["scales"][:, rows].float()
    groups, outputs = scales.shape
    grouped = integers.reshape(groups, -1, outputs)
    weights = (grouped - zeros.unsqueeze(1)) * scales.unsqueeze(1)
    return weights.reshape(-1, outputs).T
