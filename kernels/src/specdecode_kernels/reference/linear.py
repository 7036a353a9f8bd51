"""A linear map whose rows do not depend on how many there are."""

import torch
from torch import Tensor
from torch.nn import functional

ROW_BLOCK = 4
"""Matrix products on CPU sum in one order for every multiple of this many rows, measured with MKL
for 1 to 16 threads; one to three rows, or as many left over for a thread, take another path."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Map x [rows, inputs] by weight [outputs, inputs]; float32 rows are filled up to a block.

    Narrower types are rounded by more than the order of sums changes, float64 by far less.
    """
    missing = -x.shape[0] % ROW_BLOCK
    if not missing or x.dtype != torch.float32 or x.device.type != "cpu":
        return functional.linear(x, weight, bias)
    return functional.linear(functional.pad(x, (0, 0, 0, missing)), weight, bias)[: x.shape[0]]
