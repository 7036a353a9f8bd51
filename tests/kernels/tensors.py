"""Tensors for tests of kernels: seeded, of every stride, and comparison with a wide truth."""

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""A unit or two in the last place of what is stored, relative to values around 1."""


def normal(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, device: torch.device
) -> Tensor:
    """Normal numbers, the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device, dtype)


def below(high: int, *shape: int, seed: int = 0, device: torch.device) -> Tensor:
    """Integers from 0 to below `high`, i64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(high, shape, generator=generator).to(device)


def inside_wider(x: Tensor) -> Tensor:
    """The same numbers as every other row of a wider tensor full of not-a-number."""
    fill = torch.nan if x.is_floating_point() else -1
    wide = x.new_full((2 * x.shape[0], *x.shape[1:-1], x.shape[-1] + 3), fill)
    view = wide[::2, ..., 1 : 1 + x.shape[-1]]
    view.copy_(x)
    return view


def assert_near(result: Tensor, wanted: Tensor) -> None:
    """Equal but for rounding in the type that is stored."""
    assert result.dtype == wanted.dtype
    tolerance = TOLERANCE[result.dtype]
    torch.testing.assert_close(result, wanted, atol=tolerance, rtol=tolerance)
