"""Merged halves of an attention are the whole; the Triton kernel equals the reference."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_kernels import Tail, launches, merge_states
from specdecode_kernels.backends import TORCH, AttentionBackend
from specdecode_kernels.backends.triton_backend import TritonBackend
from specdecode_kernels.testing import DEVICE, Shape, draw_case

TRITON = TritonBackend(DEVICE, workspace_bytes=1 << 20)
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}

every_backend = pytest.mark.parametrize("backend", [TORCH, TRITON], ids=lambda it: it.name)


def states(rows: int, heads: int, dim: int, dtype: torch.dtype, is_strided: bool) -> list[Tensor]:
    """Draw two states, of which some see nothing and hold NaN."""
    generator = torch.Generator().manual_seed(rows)
    drawn = []
    for part in range(2):
        out = torch.randn(rows, heads, dim, generator=generator).to(dtype)
        lse = 20 * torch.randn(rows, heads, generator=generator)
        for row in (part, 2):  # a row without a, one without b, one without both
            lse[row], out[row] = -torch.inf, torch.nan
        if is_strided:
            out = out.repeat(1, 2, 1)[:, :heads]
            lse = lse.t().contiguous().t()
        drawn += [out.to(DEVICE), lse.to(DEVICE)]
    return drawn


@pytest.mark.parametrize("is_strided", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("dim", [64, 80, 128, 256])
def test_triton_equals_the_reference(dim: int, dtype: torch.dtype, is_strided: bool) -> None:
    drawn = states(5, 3, dim, dtype, is_strided)
    launches.reset()
    out, lse = merge_states(*drawn, backend=TRITON)
    assert launches.snapshot() == {("merge_states", "triton"): 1}
    wanted, wanted_lse = merge_states(*drawn)
    assert out.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.float(), wanted.float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, wanted_lse, atol=1e-5, rtol=1e-6)


@every_backend
def test_a_state_that_sees_nothing_adds_nothing(backend: AttentionBackend) -> None:
    out_a, lse_a, out_b, lse_b = states(4, 2, 16, torch.float32, is_strided=False)
    out, lse = merge_states(out_a, lse_a, out_b, lse_b, backend=backend)
    assert torch.equal(out[0], out_b[0])
    assert torch.equal(out[1], out_a[1])
    assert torch.equal(lse[:2], torch.stack((lse_b[0], lse_a[1])))
    assert out[2].eq(0).all()
    assert lse[2].eq(-torch.inf).all()


@every_backend
def test_prefix_and_tail_merge_to_the_whole(backend: AttentionBackend) -> None:
    case = draw_case(Shape(query_lens=(3, 3), tail_rows=5, longest=30), 1).to(DEVICE)
    prefix = replace(case, tail=None).attend_with_lse(backend)
    nothing = replace(case.layout, visible=torch.zeros_like(case.layout.visible))
    tail = replace(case, layout=nothing).attend_with_lse(backend)
    out, lse = merge_states(*prefix, *tail, backend=backend)
    wanted, wanted_lse = case.attend_with_lse()
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, wanted_lse, atol=1e-5, rtol=1e-5)


@every_backend
def test_splitting_a_tail_merges_to_the_whole(backend: AttentionBackend) -> None:
    case = draw_case(Shape(query_lens=(2, 2), tail_rows=8, longest=9), 2).to(DEVICE)
    assert case.tail is not None
    k, v, mask = case.tail.k, case.tail.v, case.tail.mask
    first = replace(case, tail=Tail(k[:, :5], v[:, :5], mask[..., :5]))
    nothing = replace(case.layout, visible=torch.zeros_like(case.layout.visible))
    second = replace(case, layout=nothing, tail=Tail(k[:, 5:], v[:, 5:], mask[..., 5:]))
    parts = (*first.attend_with_lse(backend), *second.attend_with_lse(backend))
    out, _ = merge_states(*parts, backend=backend)
    torch.testing.assert_close(out, case.attend(), atol=1e-5, rtol=1e-5)


def test_no_rows_merge_to_none() -> None:
    out, lse = torch.zeros(0, 2, 8, device=DEVICE), torch.zeros(0, 2, device=DEVICE)
    merged, merged_lse = merge_states(out, lse, out, lse, backend=TRITON)
    assert merged.shape == (0, 2, 8)
    assert merged_lse.shape == (0, 2)
