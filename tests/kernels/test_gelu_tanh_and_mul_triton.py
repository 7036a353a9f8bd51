"""The kernel of Gemma's gate equals the reference, halves of one projection read where they lie."""

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.tensors import TOLERANCE, assert_near, inside_wider, normal
from tests.kernels.triton_ops import TRITON


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 2), (3, 10), (2, 2, 64), (2, 2060)], ids=str)
def test_it_equals_the_reference(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    both = normal(*shape, dtype=dtype, device=device) * 3
    for x in (both, inside_wider(both)):
        gate, up = x.chunk(2, dim=-1)
        assert_near(TRITON.gelu_tanh_and_mul(gate, up), TORCH.gelu_tanh_and_mul(gate, up))


def test_the_ends_of_the_scale(device: torch.device) -> None:
    gate = torch.tensor([[-80.0, 0.0, 80.0]], device=device)
    wanted = torch.tensor([[0.0, 0.0, 160.0]], device=device)
    torch.testing.assert_close(TRITON.gelu_tanh_and_mul(gate, torch.full_like(gate, 2.0)), wanted)
