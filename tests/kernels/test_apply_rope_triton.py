"""The rotation's kernel equals the reference, for q and k as parts of one projection, in place."""

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.tensors import TOLERANCE, assert_near, normal
from tests.kernels.triton_ops import TRITON


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("q_heads", "k_heads", "dim"), [(1, 1, 2), (4, 2, 16), (9, 1, 10), (16, 8, 64)]
)
def test_it_turns_its_heads_and_nothing_else(
    q_heads: int, k_heads: int, dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    rows = 3
    qkv = normal(rows, q_heads + 2 * k_heads, dim, dtype=dtype, device=device)
    angles = normal(rows, dim // 2, seed=1, device=device) * 3
    before = qkv.clone()
    q, k, v = before.split([q_heads, k_heads, k_heads], dim=1)
    wanted = TORCH.apply_rope(q, k, angles.cos(), angles.sin())
    parts = qkv.split([q_heads, k_heads, k_heads], dim=1)
    turned = TRITON.apply_rope(parts[0], parts[1], angles.cos(), angles.sin())
    for result, part, truth in zip(turned, parts, wanted, strict=False):
        assert_near(result, truth)
        assert result.data_ptr() == part.data_ptr()
    assert torch.equal(parts[2], v)


def test_angles_may_be_rows_of_a_table(device: torch.device) -> None:
    table = normal(8, 2, 4, device=device)
    q, k = normal(3, 2, 8, device=device), normal(3, 1, 8, seed=1, device=device)
    wanted = TORCH.apply_rope(q, k, table[::3, 0], table[::3, 1])
    turned = TRITON.apply_rope(q, k, table[::3, 0], table[::3, 1])
    for result, truth in zip(turned, wanted, strict=True):
        assert_near(result, truth)
