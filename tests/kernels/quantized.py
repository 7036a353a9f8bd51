"""Random quantized weights, for tests of kernels."""

import torch
from torch import Tensor

from specdecode_kernels import INT4, Precision, QuantizedTensor, quantize

PRECISIONS = {
    "int8": Precision("int8"),
    "int4": INT4,
    "int4 in groups of 128": Precision("int4", 128),
    "float8": Precision("float8_e4m3fn"),
    "float8 in groups of 32": Precision("float8_e4m3fn", 32),
    "float8 in groups of 128": Precision("float8_e4m3fn", 128),
}
FORMS = (*PRECISIONS, "int4 with zero points", "int4 with wide scales", "float8 with narrow scales")


def draw_quantized(form: str, weight: Tensor) -> QuantizedTensor:
    """Quantize a weight [..., outputs, inputs] in one of the forms that kernels take."""
    if form in PRECISIONS:
        return quantize(weight, PRECISIONS[form])
    if form == "float8 with narrow scales":  # powers of two
        rounded = quantize(weight, PRECISIONS["float8 in groups of 128"])
        return _with(rounded, torch.exp2(rounded.scales.log2().round()))
    rounded = quantize(weight, INT4)
    if form == "int4 with wide scales":
        return _with(rounded, rounded.scales * 1.0001)  # no number of bfloat16
    generator = torch.Generator().manual_seed(0)
    zeros = torch.randint(-8, 8, rounded.scales.shape, generator=generator, dtype=torch.int8)
    return _with(rounded, rounded.scales, zeros)


def _with(weight: QuantizedTensor, scales: Tensor, zeros: Tensor | None = None) -> QuantizedTensor:
    shape, dtype, group = weight.shape, weight.dtype, weight.group
    return QuantizedTensor(weight.values, scales, shape, dtype, group, zeros)


def moved(weight: QuantizedTensor, device: torch.device) -> QuantizedTensor:
    """Copy a weight to a device."""
    zeros = None if weight.zeros is None else weight.zeros.to(device)
    values, scales = weight.values.to(device), weight.scales.to(device)
    return QuantizedTensor(values, scales, weight.shape, weight.dtype, weight.group, zeros)
