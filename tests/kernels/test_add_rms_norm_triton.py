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


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_parts_of_an_update_are_added_in_their_order(
    count: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = normal(5, 100, dtype=dtype, device=device)
    scales = 3.0 ** torch.arange(count, device=device).view(-1, 1, 1)
    parts = (normal(count, 5, 100, seed=1, device=device) * scales).to(dtype)
    weight = normal(100, seed=2, dtype=dtype, device=device)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    total = parts[0].to(wide)
    for part in parts[1:]:
        total = total + part.to(wide)
    wanted_sum = x + total.to(dtype)
    assert torch.equal(TORCH.add_rms_norm(x, parts, weight, 1e-5)[0], wanted_sum)
    for given in (parts, inside_wider(parts)):
        summed, normed = TRITON.add_rms_norm(x, given, weight, 1e-5)
        assert_near(normed, TORCH.rms_norm(summed, weight, 1e-5))
        if dtype != torch.bfloat16 or x.is_cuda:
            assert torch.equal(summed, wanted_sum)
        else:  # the interpreter cuts bfloat16 off, twice
            assert ((summed - wanted_sum).abs() <= 2**-6 * (x.abs() + total.abs())).all()
