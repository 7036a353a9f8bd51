"""The norm's kernel equals the reference in every type, width and stride."""

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.tensors import TOLERANCE, assert_near, inside_wider, normal
from tests.kernels.triton_ops import TRITON


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 10), (2, 2, 64), (7, 1023)], ids=str)
def test_it_equals_the_reference(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    x = normal(*shape, dtype=dtype, device=device)
    weight = normal(shape[-1], seed=1, dtype=dtype, device=device)
    wanted = TORCH.rms_norm(x, weight, 1e-5)
    assert_near(TRITON.rms_norm(x, weight, 1e-5), wanted)
    assert_near(TRITON.rms_norm(inside_wider(x), weight, 1e-5), wanted)


def test_large_float16_does_not_overflow(device: torch.device) -> None:
    x = torch.full((1, 8), 60_000.0, dtype=torch.float16, device=device)
    assert torch.equal(TRITON.rms_norm(x, torch.ones_like(x[0]), 1e-5), torch.ones_like(x))


def test_no_rows_are_legal(device: torch.device) -> None:
    x = torch.empty((0, 8), device=device)
    assert TRITON.rms_norm(x, torch.ones(8, device=device), 1e-5).shape == (0, 8)
