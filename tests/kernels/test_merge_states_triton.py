"""Merged halves of an attention are the whole; the Triton kernel equals the reference."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_kernels import DEFAULT_ATTENTION, TORCH, Backend, TreeKV
from specdecode_kernels.testing import DEVICE, Shape, draw_case
from specdecode_kernels.triton.backend import with_triton_attention
from tests.kernels.launched import launches
from tests.kernels.triton_ops import TRITON

BACKENDS = {"torch": TORCH, "triton": TRITON}
TOLERANCE = {torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}

every_backend = pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)


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
    with launches() as counts:
        out, lse = TRITON.merge_states(*drawn)
    assert counts == {"merge_states": 1}
    wanted, wanted_lse = TORCH.merge_states(*drawn)
    assert out.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.float(), wanted.float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, wanted_lse, atol=1e-5, rtol=1e-6)


@every_backend
def test_a_state_that_sees_nothing_adds_nothing(backend: Backend) -> None:
    out_a, lse_a, out_b, lse_b = states(4, 2, 16, torch.float32, is_strided=False)
    out, lse = backend.merge_states(out_a, lse_a, out_b, lse_b)
    assert torch.equal(out[0], out_b[0])
    assert torch.equal(out[1], out_a[1])
    assert torch.equal(lse[:2], torch.stack((lse_b[0], lse_a[1])))
    assert out[2].eq(0).all()
    assert lse[2].eq(-torch.inf).all()


@every_backend
def test_prefix_and_tree_merge_to_the_whole(backend: Backend) -> None:
    case = draw_case(Shape(qo_lens=(3, 3), tree_rows=5, longest=30), 1).to(DEVICE)
    prefix = replace(case, tree_kv=None).attend_with_lse(backend)
    nothing = replace(case.metadata, kv_lens=torch.zeros_like(case.metadata.kv_lens))
    tree_kv = replace(case, metadata=nothing).attend_with_lse(backend)
    out, lse = backend.merge_states(*prefix, *tree_kv)
    wanted, wanted_lse = case.attend_with_lse()
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, wanted_lse, atol=1e-5, rtol=1e-5)


@every_backend
def test_splitting_tree_kv_merges_to_the_whole(backend: Backend) -> None:
    case = draw_case(Shape(qo_lens=(2, 2), tree_rows=8, longest=9), 2).to(DEVICE)
    assert case.tree_kv is not None
    k, v, mask = case.tree_kv
    first = replace(case, tree_kv=TreeKV(k[:, :5], v[:, :5], mask[..., :5]))
    nothing = replace(case.metadata, kv_lens=torch.zeros_like(case.metadata.kv_lens))
    second = replace(case, metadata=nothing, tree_kv=TreeKV(k[:, 5:], v[:, 5:], mask[..., 5:]))
    parts = (*first.attend_with_lse(backend), *second.attend_with_lse(backend))
    out, _ = backend.merge_states(*parts)
    torch.testing.assert_close(out, case.attend(), atol=1e-5, rtol=1e-5)


@every_backend
def test_sinks_are_counted_once(backend: Backend) -> None:
    """Prefix and tree KV, the second with sinks; and the splits of one call."""
    case = draw_case(Shape(qo_lens=(3, 3), tree_rows=5, longest=30, has_sinks=True), 1).to(DEVICE)
    wanted, wanted_lse = case.attend_with_lse()
    plain = replace(case, tree_kv=None, params=DEFAULT_ATTENTION).attend_with_lse(backend)
    nothing = replace(case.metadata, kv_lens=torch.zeros_like(case.metadata.kv_lens))
    with_sinks = replace(case, metadata=nothing).attend_with_lse(backend)
    states = [backend.merge_states(*plain, *with_sinks)]
    if backend is TRITON:
        split = with_triton_attention(TORCH, DEVICE, splits=4, workspace_bytes=1 << 20)
        states.append(case.attend_with_lse(split))
    for out, lse in states:
        torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(lse, wanted_lse, atol=1e-5, rtol=1e-5)


def test_no_rows_merge_to_none() -> None:
    out, lse = torch.zeros(0, 2, 8, device=DEVICE), torch.zeros(0, 2, device=DEVICE)
    merged, merged_lse = TRITON.merge_states(out, lse, out, lse)
    assert merged.shape == (0, 2, 8)
    assert merged_lse.shape == (0, 2)
