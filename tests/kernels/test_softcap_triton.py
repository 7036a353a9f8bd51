"""The kernel of the softcap equals the reference, near 0 and far beyond the cap."""

import pytest
import torch

from specdecode_kernels import TORCH
from tests.kernels.launched import launches
from tests.kernels.tensors import normal
from tests.kernels.triton_ops import TRITON


@pytest.mark.parametrize("shape", [(1, 2), (3, 10), (2, 1030)], ids=str)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0, 300.0])
def test_it_equals_the_reference(
    shape: tuple[int, int], scale: float, device: torch.device
) -> None:
    x = normal(*shape, dtype=torch.float32, device=device) * scale
    for logits in (x, x.t().contiguous().t()):
        torch.testing.assert_close(
            TRITON.softcap(logits, 30.0), TORCH.softcap(x, 30.0), rtol=1e-6, atol=1e-7 * scale
        )


def test_the_ends_of_the_scale(device: torch.device) -> None:
    x = torch.tensor([[-1e30, -200.0, 0.0, 1e30, torch.inf, torch.nan]], device=device)
    wanted = torch.tensor([[-30.0, -30.0, 0.0, 30.0, 30.0, torch.nan]], device=device)
    got = TRITON.softcap(x, 30.0)
    torch.testing.assert_close(got, wanted, equal_nan=True, rtol=1e-4, atol=0)


def test_float64_goes_to_the_reference(device: torch.device) -> None:
    x = normal(2, 9, dtype=torch.float64, device=device) * 40
    with launches() as counts:
        assert torch.equal(TRITON.softcap(x, 30.0), TORCH.softcap(x, 30.0))
    assert not counts


def test_no_rows_are_legal(device: torch.device) -> None:
    assert TRITON.softcap(torch.empty(0, 8, device=device), 30.0).shape == (0, 8)
