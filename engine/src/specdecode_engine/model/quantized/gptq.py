"""GPTQ, as AutoGPTQ and GPTQModel write it.

A linear map of I inputs and O outputs, with b bits, n = 32 / b and G groups, is stored as

- `qweight` [I / n, O] int32: integers of b bits, of n inputs in one word, lowest bits first,
- `qzeros` [G, O / n] int32: zero points of n outputs in one word,
- `scales` [G, O] float16,
- `g_idx` [I] int32: the group of each input; absent where groups are consecutive inputs.

Weight [o, i] is scales[g, o] * (qweight[i, o] - z[g, o]), where z is qzeros in version 2 of the
layout and (qzeros + 1) mod 2^b in version 1, which stores zero points less one.

Source: AutoGPTQ, `auto_gptq/nn_modules/qlinear/qlinear_cuda.py`; GPTQModel, `utils/model.py`
(`convert_gptq_v1_to_v2_format`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode_engine.model.quantized.packing import unpack
from specdecode_engine.model.quantized.weight import (
    Headers,
    KeptQuantization,
    Parts,
    QuantizedRows,
    QuantizedWeight,
    kept_precisions,
)
from specdecode_kernels import Precision


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """Weights of `bits` bits; `group_size` inputs share a scale, all of them if it is None."""

    bits: int
    group_size: int | None
    zero_offset: int  # what is added to stored zero points
    is_ordered: bool  # whether groups are consecutive inputs (desc_act is false)

    @property
    def precisions(self) -> tuple[Precision, ...]:
        is_kept = self.bits == 4 and self.is_ordered
        return kept_precisions(self.bits, self.group_size) if is_kept else ()

    def find(self, headers: Headers) -> Iterator[QuantizedWeight]:
        per_word = 32 // self.bits
        for prefix, shape in headers.ending(".qweight"):
            name = f"{prefix}.qweight"
            if len(shape) != 2 or shape[1] % per_word:
                fault = f"words of {per_word} zero points need a matrix of as many outputs"
                raise headers.misfit(name, fault)
            inputs, outputs = shape[0] * per_word, shape[1]
            groups = -(-inputs // (self.group_size or inputs))
            parts = {
                "qweight": name,
                "qzeros": headers.need(f"{prefix}.qzeros", (groups, outputs // per_word)),
                "scales": headers.need(f"{prefix}.scales", (groups, outputs)),
            }
            if f"{prefix}.g_idx" in headers.tensors:
                parts["g_idx"] = headers.need(f"{prefix}.g_idx", (inputs,))
            yield QuantizedWeight(
                name=f"{prefix}.weight",
                shape=(outputs, inputs),
                parts=parts,
                dequantize_rows=self._dequantize_rows,
                row_multiple=per_word,
                kept=KeptQuantization(self.precisions[-1], self._kept) if self.precisions else None,
            )

    def _dequantize_rows(self, parts: Parts, rows: slice) -> Tensor:
        part = self._rows(parts, rows)
        groups = parts.get("g_idx", part.in_order(self.group_size))
        return part.plain(groups.long())

    def _kept(self, parts: Parts, rows: slice) -> QuantizedRows | None:
        part = self._rows(parts, rows)
        in_order = part.in_order(self.group_size)
        return part if torch.equal(parts.get("g_idx", in_order).long(), in_order) else None

    def _rows(self, parts: Parts, rows: slice) -> QuantizedRows:
        per_word, middle = 32 // self.bits, 1 << (self.bits - 1)
        words = slice(rows.start // per_word, rows.stop // per_word)
        integers = unpack(parts["qweight"][:, rows].T, self.bits)
        zeros = unpack(parts["qzeros"][:, words], self.bits).T
        zeros = (zeros + self.zero_offset) & ((1 << self.bits) - 1)
        return QuantizedRows(integers - middle, parts["scales"][:, rows].T.float(), zeros - middle)
