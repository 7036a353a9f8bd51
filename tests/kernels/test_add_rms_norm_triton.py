"""The residual sum is rounded as in torch, and the norm is that of the rounded sum."""

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.tensors import TOLERANCE, assert_near, inside_wider, normal
from tests.kernels.triton_ops import TRITON


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("shape", [(1, 1), (3, 10), (2, 2, 64), (5, 1023)], ids=str)
def test_it_equals_the_reference(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    x = normal(*shape, dtype=dtype, device=device)
    update = normal(*shape, seed=1, dtype=dtype, device=device)
    weight = normal(shape[-1], seed=2, dtype=dtype, device=device)
    wanted_sum, _ = TORCH.add_rms_norm(x, update, weight, 1e-5)
    for left, right in ((x, update), (inside_wider(x), inside_wider(update)), (x, update * 1)):
        summed, normed = TRITON.add_rms_norm(left, right, weight, 1e-5)
        assert_near(summed, wanted_sum)
        # Not of the wanted sum: what the interpreter cut off of that would count twice.
        assert_near(normed, TORCH.rms_norm(summed, weight, 1e-5))
        if dtype != torch.bfloat16 or x.is_cuda:  # the interpreter cuts bfloat16 off
            assert torch.equal(summed, wanted_sum)


def test_the_reference_is_a_sum_and_a_norm_to_the_bit(device: torch.device) -> None:
    x, update = (normal(4, 33, seed=seed, device=device) for seed in (0, 1))
    weight = normal(33, seed=2, device=device)
    summed, normed = TORCH.add_rms_norm(x, update, weight, 1e-5)
    assert torch.equal(summed, x + update)
    assert torch.equal(normed, TORCH.rms_norm(x + update, weight, 1e-5))
