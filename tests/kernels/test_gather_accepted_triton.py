"""Rows of the path are copied to the bit, whatever their shape, type and stride."""

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.tensors import below, inside_wider, normal
from tests.kernels.trees import every_other
from tests.kernels.triton_ops import TRITON


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64], ids=str
)
@pytest.mark.parametrize("shape", [(2, 5), (3, 4, 7), (2, 6, 2, 8), (1, 3, 2049)], ids=str)
def test_it_equals_the_reference(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> None:
    values = (normal(*shape, device=device) * 100).to(dtype)
    path = below(shape[1], shape[0], 3, device=device)
    wanted = TORCH.gather_accepted(values, path)
    for strided in (values, inside_wider(values), values.transpose(0, 1).clone().transpose(0, 1)):
        for places in (path, every_other(path)):
            assert torch.equal(TRITON.gather_accepted(strided, places), wanted)


def test_what_is_not_taken_may_be_anything(device: torch.device) -> None:
    values = torch.tensor([[[1.0], [torch.nan], [3.0]]], device=device)
    assert TRITON.gather_accepted(values, torch.tensor([[2, 0]], device=device)).tolist() == [
        [[3.0], [1.0]]
    ]
