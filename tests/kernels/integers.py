"""Random weights of integers with scales, for tests of kernels."""

import torch
from torch import Tensor

from specdecode_kernels import INT4, INT8, IntegerWeight, Precision, quantize

FORMS = ("int8", "int4", "int4 in groups of 128", "int4 with zero points", "int4 with wide scales")


def draw_integers(form: str, weight: Tensor) -> IntegerWeight:
    """Quantize a weight [..., outputs, inputs] in one of the forms that kernels take."""
    if form == "int8":
        return quantize(weight, INT8)
    if form == "int4 in groups of 128":
        return quantize(weight, Precision(4, 128))
    rounded = quantize(weight, INT4)
    if form == "int4":
        return rounded
    zeros, scales = None, rounded.scales
    if form == "int4 with zero points":
        generator = torch.Generator().manual_seed(0)
        zeros = torch.randint(-8, 8, scales.shape, generator=generator, dtype=torch.int8)
    else:
        scales = scales * 1.0001  # no number of bfloat16
    group = rounded.group
    return IntegerWeight(rounded.values, scales, rounded.shape, rounded.dtype, group, zeros)


def moved(weight: IntegerWeight, device: torch.device) -> IntegerWeight:
    """Copy a weight to a device."""
    zeros = None if weight.zeros is None else weight.zeros.to(device)
    values, scales = weight.values.to(device), weight.scales.to(device)
    return IntegerWeight(values, scales, weight.shape, weight.dtype, weight.group, zeros)
