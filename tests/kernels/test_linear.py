"""A linear map equals its formula."""

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 5e-2}


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 3, 4, 9])
def test_it_equals_the_formula(rows: int, dtype: torch.dtype, with_bias: bool) -> None:
    x, weight = normal(rows, 10).to(dtype), normal(7, 10).to(dtype)
    bias = normal(7).to(dtype) if with_bias else None
    wanted = (x.double()[:, None] * weight.double()).sum(-1)
    wanted = wanted if bias is None else wanted + bias.double()
    result = TORCH.linear(x, weight, bias)
    assert result.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(result.double(), wanted, atol=tolerance, rtol=tolerance)
