"""GPTQ, as AutoGPTQ, GPTQModel and AutoRound write it.

A linear map of I inputs and O outputs, with b bits and G groups, is stored as

- `qweight` [I * b / 32, O] int32: integers of b bits, a stream of bits for each output, lowest
  bits first,
- `qzeros` [G, O * b / 32] int32: zero points, a stream for each group,
- `scales` [G, O] float16,
- `g_idx` [I] int32: the group of each input; absent where groups are consecutive inputs.

Weight [o, i] is scales[g, o] * (qweight[i, o] - z[g, o]), where z is qzeros in version 2 of the
layout and (qzeros + 1) mod 2^b in version 1, which stores zero points less one. Some modules may
have a layout of their own.

Source: AutoGPTQ, `auto_gptq/nn_modules/qlinear/qlinear_cuda.py`; GPTQModel, `utils/model.py`
(`convert_gptq_v1_to_v2_format`); AutoRound 0.16, `auto_round_extension/torch/`.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from specdecode_engine.model.checkpoint.checkpoint import Shape
from specdecode_engine.model.checkpoint.quantized.packing import unpack
from specdecode_engine.model.checkpoint.quantized.weight import (
    Headers,
    KeptQuantization,
    Parts,
    QuantizedRows,
    QuantizedWeight,
    group_index,
    kept_precisions,
)
from specdecode_kernels import Precision


@dataclass(frozen=True, slots=True)
class GptqLayout:
    """Weights of `bits` bits; `group_size` inputs share a scale, all of them if it is None."""

    bits: int
    group_size: int | None
    zero_offset: int  # what is added to stored zero points
    is_ordered: bool  # whether groups are consecutive inputs (desc_act is false)
    is_symmetric: bool = False  # whether all zero points are in the middle

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The forms in which weights are kept."""
        return kept_precisions(self.bits, self.group_size)

    @property
    def _precision(self) -> Precision:
        """That of any zero points; only integers of 4 bits may have some that are symmetric."""
        has_zeros = self.bits == 4 or not self.is_symmetric
        return self.precisions[1 if has_zeros else 0]

    def find(self, headers: Headers, prefix: str, shape: Shape) -> QuantizedWeight:
        """Return the weight whose `qweight` has a shape."""
        name, bits = f"{prefix}.qweight", self.bits
        # The fewest integers that fill whole words.
        multiple = 32 // math.gcd(32, bits)
        if len(shape) != 2 or shape[1] % multiple or shape[0] * 32 % bits:
            fault = f"words of {bits} bits need a matrix of a multiple of {multiple} outputs"
            raise headers.misfit(name, fault)
        inputs, outputs = shape[0] * 32 // bits, shape[1]
        groups = -(-inputs // (self.group_size or inputs))
        parts = {
            "qweight": name,
            "qzeros": headers.need(f"{prefix}.qzeros", (groups, outputs * bits // 32)),
            "scales": headers.need(f"{prefix}.scales", (groups, outputs)),
        }
        if f"{prefix}.g_idx" in headers.tensors:
            parts["g_idx"] = headers.need(f"{prefix}.g_idx", (inputs,))
        return QuantizedWeight(
            name=f"{prefix}.weight",
            shape=(outputs, inputs),
            parts=parts,
            dequantize_rows=self._dequantize_rows,
            row_multiple=multiple,
            kept=self._kept(has_index="g_idx" in parts) if self.precisions else None,
        )

    def _kept(self, *, has_index: bool) -> KeptQuantization:
        return KeptQuantization(
            self._precision,
            self._rows,
            groups=self._groups,
            is_shuffled=has_index and not self.is_ordered,
        )

    def _groups(self, parts: Parts) -> Tensor | None:
        return group_index(parts["g_idx"], self.group_size) if "g_idx" in parts else None

    def _dequantize_rows(self, parts: Parts, rows: slice) -> Tensor:
        part = self._rows(parts, rows)
        groups = self._groups(parts)
        return part.plain(part.in_order(self.group_size) if groups is None else groups)

    def _rows(self, parts: Parts, rows: slice) -> QuantizedRows:
        middle = 1 << (self.bits - 1)
        words = slice(rows.start * self.bits // 32, rows.stop * self.bits // 32)
        integers = unpack(parts["qweight"][:, rows].T, self.bits)
        zeros = unpack(parts["qzeros"][:, words], self.bits).T
        zeros = (zeros + self.zero_offset) & ((1 << self.bits) - 1)
        return QuantizedRows(integers - middle, parts["scales"][:, rows].T.float(), zeros - middle)


@dataclass(frozen=True, slots=True)
class GptqFormat:
    """The layout of all modules but those whose name has a match; the first decides.

    A layout of None stands for modules that are not quantized.
    """

    layout: GptqLayout
    overrides: tuple[tuple[re.Pattern[str], GptqLayout | None], ...] = ()

    @property
    def precisions(self) -> tuple[Precision, ...]:
        return tuple(dict.fromkeys(form for one in self.layouts for form in one.precisions))

    @property
    def layouts(self) -> tuple[GptqLayout, ...]:
        """All different layouts."""
        others = (layout for _, layout in self.overrides if layout is not None)
        return tuple(dict.fromkeys((self.layout, *others)))

    def find(self, headers: Headers) -> Iterator[QuantizedWeight]:
        for prefix, shape in headers.ending(".qweight"):
            matching = (one for pattern, one in self.overrides if pattern.search(prefix))
            layout = next(matching, self.layout)
            if layout is None:
                fault = "`dynamic` excludes the module: its first match begins with -:"
                raise headers.misfit(f"{prefix}.qweight", fault)
            yield layout.find(headers, prefix, shape)
