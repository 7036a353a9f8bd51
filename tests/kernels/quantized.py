"""Random quantized weights, for tests of kernels."""

from dataclasses import replace

import torch
from torch import Tensor

from specdecode_kernels import INT4, MXFP4, NVFP4, Precision, QuantizedTensor, quantize

PRECISIONS = {
    "int8": Precision("int8"),
    "int8 in groups of 32": Precision("int8", 32),
    "int4": INT4,
    "int4 in groups of 128": Precision("int4", 128),
    "float8": Precision("float8_e4m3fn"),
    "float8 in groups of 32": Precision("float8_e4m3fn", 32),
    "float8 in groups of 128": Precision("float8_e4m3fn", 128),
}
FLOAT4 = {"mxfp4": MXFP4, "nvfp4": NVFP4}
FORMS = (
    *PRECISIONS,
    "int4 with zero points",
    "int4 with wide scales",
    "int4 with an order of inputs",
    "int8 with zero points",
    "int8 with zero points in groups",
    "float8 with narrow scales",
)


def draw_quantized(form: str, weight: Tensor) -> QuantizedTensor:
    """Quantize a weight [..., outputs, inputs] in one of the forms that kernels take."""
    if precision := (PRECISIONS | FLOAT4).get(form):
        return quantize(weight, precision)
    if form == "float8 with narrow scales":  # powers of two
        rounded = quantize(weight, PRECISIONS["float8 in groups of 128"])
        return replace(rounded, scales=torch.exp2(rounded.scales.log2().round()))
    generator = torch.Generator().manual_seed(0)
    if "int8" in form:
        name = "int8 in groups of 32" if form.endswith("groups") else "int8"
        rounded = quantize(weight, PRECISIONS[name])
        shape = rounded.scales.shape
        zeros = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
        return replace(rounded, zeros=zeros, scales=rounded.scales / 2)
    rounded = quantize(weight, INT4)
    if form == "int4 with wide scales":
        return replace(rounded, scales=rounded.scales * 1.0001)  # no number of bfloat16
    zeros = torch.randint(-8, 8, rounded.scales.shape, generator=generator, dtype=torch.int8)
    if form == "int4 with an order of inputs":
        order = torch.randperm(weight.shape[-1], generator=generator).int()
        return replace(rounded, zeros=zeros, order=order)
    return replace(rounded, zeros=zeros)
