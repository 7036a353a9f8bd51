"""The kernel of linear maps with integers equals the reference; plain weights go to torch."""

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.launched import launches
from tests.kernels.quantized import FORMS, draw_quantized
from tests.kernels.tensors import inside_wider, normal
from tests.kernels.triton_ops import TRITON

TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.3}
SHAPES = [(70, 96), (33, 45), (130, 130)]  # outputs, inputs


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_equals_the_reference(
    shape: tuple[int, int], form: str, dtype: torch.dtype, device: torch.device
) -> None:
    weight = draw_quantized(form, normal(*shape, dtype=dtype, device=torch.device("cpu")))
    weight = weight.on(device)
    bias = normal(shape[0], dtype=dtype, device=device)
    for rows in (1, 17):
        x = inside_wider(normal(rows, shape[1], dtype=dtype, device=device))
        with launches() as counts:
            got = TRITON.linear(x, weight, bias)
        assert counts == {"map_quantized": 1}
        wanted = TORCH.linear(x, weight, bias)
        assert got.dtype == dtype
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(got.float(), wanted.float(), atol=tolerance, rtol=0.02)


def test_no_rows_launch_nothing(device: torch.device) -> None:
    weight = draw_quantized("int4", torch.randn(70, 64)).on(device)
    with launches() as counts:
        assert TRITON.linear(torch.zeros(0, 64, device=device), weight, None).shape == (0, 70)
    assert not counts


def test_plain_weights_go_to_torch(device: torch.device) -> None:
    x, weight = torch.randn(3, 8, device=device), torch.randn(5, 8, device=device)
    with launches() as counts:
        got = TRITON.linear(x, weight, None)
    assert not counts
    assert torch.equal(got, TORCH.linear(x, weight, None))
