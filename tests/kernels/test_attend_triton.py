"""The Triton kernels of attention equal the reference, for any shape, type, metadata and split.

float32 differs by the order of sums. float16 and bfloat16 also by the rounding of the softmax's
weights and of the result: some units in the last place, of which values near 2 have 2e-3 and 2e-2.
"""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode_kernels import FLOAT8, TORCH, AttentionParams, Backend, LayerKV
from specdecode_kernels.testing import DEVICE, AttentionArgs, Shape, seen_rows
from specdecode_kernels.testing import draw_case as draw_on_cpu
from specdecode_kernels.triton.backend import with_triton_attention
from specdecode_kernels.triton.float8 import float8_is_native
from tests.kernels.launched import launches

TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
SHAPES = {
    "decode": Shape(qo_lens=(1, 1, 1), longest=70, page_size=16),
    "one head a group, page 1": Shape(qo_lens=(1, 1), shared=1, page_size=1, longest=40),
    "one kv head, dim 64": Shape(qo_lens=(1,), kv_heads=1, shared=7, dim=64, page_size=3),
    "chain": Shape(qo_lens=(8, 8), is_causal=True, longest=90, page_size=16),
    "32 rows, page 256": Shape(qo_lens=(32,), is_causal=True, longest=150, page_size=256),
    "any rows": Shape(qo_lens=(5, 5), shared=3, longest=33),
    "dim 80": Shape(qo_lens=(2, 2), dim=80, tree_rows=3),
    "dim 96": Shape(qo_lens=(1, 1), dim=96, longest=40),
    "dim 256": Shape(qo_lens=(2,), dim=256, longest=40, tree_rows=9),
    "dim 512": Shape(qo_lens=(3, 1), kv_heads=1, dim=512, longest=40, tree_rows=3),
    "latents": Shape(
        qo_lens=(3, 1), kv_heads=1, shared=5, dim=40, v_dim=32, longest=70, is_latent=True
    ),
    "latents of 128 heads, page 1": Shape(
        qo_lens=(1, 1), page_size=1, kv_heads=1, shared=128, dim=576, v_dim=512, is_latent=True
    ),
    "latents of trees": Shape(
        qo_lens=(6, 1), kv_heads=1, shared=3, dim=30, v_dim=20, tree_rows=6, is_latent=True
    ),
    "tree": Shape(qo_lens=(6, 6), tree_rows=6, longest=40),
    "tree of 40 nodes": Shape(qo_lens=(40,), tree_rows=40, shared=4, dim=64, longest=70),
    "trees of different sizes": Shape(qo_lens=(1, 6, 0, 3), tree_rows=6, longest=40),
    "scratch": Shape(qo_lens=(4, 4), tree_rows=70, longest=9),
    "ragged": Shape(qo_lens=(1, 0, 7, 3), is_causal=True, longest=50, page_size=3),
    "long extend": Shape(qo_lens=(70, 2), kv_heads=1, is_causal=True, longest=80),
}
LARGE = ("latents of 128 heads, page 1", "32 rows, page 256", "tree of 40 nodes", "long extend")
"""Shapes that take many seconds in the interpreter."""


def draw_case(shape: Shape, seed: int) -> AttentionArgs:
    return draw_on_cpu(shape, seed).to(DEVICE)


def backend(
    splits: int | None, workspace_bytes: int = 1 << 21, converts_float8: bool | None = None
) -> Backend:
    return with_triton_attention(
        TORCH,
        DEVICE,
        splits=splits,
        workspace_bytes=workspace_bytes,
        converts_float8=converts_float8,
    )


def assert_equals_reference(
    case: AttentionArgs, splits: int | None, converts_float8: bool | None = None
) -> None:
    """Compare; what is not seen is poison, so a read too far would show as NaN."""
    out, lse = case.attend_with_lse(backend(splits, converts_float8=converts_float8))
    wanted, wanted_lse = case.attend_with_lse()
    assert out.dtype == case.q.dtype
    assert lse.dtype == torch.float32
    tolerance = TOLERANCE[case.q.dtype]
    torch.testing.assert_close(out.float(), wanted.float(), atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse, wanted_lse, atol=1e-5, rtol=1e-5)


VARIANTS = ((torch.float32, 1, False), (torch.float16, 1, True), (torch.bfloat16, 3, True))


@pytest.mark.parametrize(
    ("name", "dtype", "splits", "is_strided"),
    [
        (name, *variant)
        for name in SHAPES
        for variant in (VARIANTS[-1:] if name in LARGE else VARIANTS)
    ],
    ids=str,
)
def test_it_equals_the_reference(
    name: str, dtype: torch.dtype, splits: int, is_strided: bool
) -> None:
    shape = replace(SHAPES[name], dtype=dtype, is_strided=is_strided)
    assert_equals_reference(draw_case(shape, 1), splits)


ALL_PARAMS = AttentionParams(scale=0.3, logit_softcap=1.5, sliding_window=6)


@pytest.mark.parametrize(("window", "splits"), [(1, 3), (6, 1), (32, 3)])
@pytest.mark.parametrize(
    "name", ["decode", "chain", "tree", "trees of different sizes", "ragged", "dim 80"]
)
def test_params_and_head_sizes_equal_the_reference(name: str, splits: int, window: int) -> None:
    params = replace(ALL_PARAMS, sliding_window=window)
    shape = replace(SHAPES[name], is_causal=True, v_dim=24, params=params, has_sinks=True)
    assert_equals_reference(draw_case(shape, window), splits)


@pytest.mark.parametrize(("size", "splits"), [(1, 3), (7, 1), (32, 3)])
@pytest.mark.parametrize("name", ["decode", "chain", "tree", "trees of different sizes", "ragged"])
def test_chunks_equal_the_reference(name: str, splits: int, size: int) -> None:
    params = AttentionParams(attention_chunk_size=size)
    assert_equals_reference(
        draw_case(replace(SHAPES[name], is_causal=True, params=params), size), splits
    )


@pytest.mark.parametrize(
    "params", [AttentionParams(sliding_window=9), AttentionParams(attention_chunk_size=9)]
)
def test_a_window_or_chunk_skips_the_blocks_before_it(params: AttentionParams) -> None:
    """Their page ids may be of pages that the pool does not have."""
    shape = Shape((2, 2), longest=200, is_causal=True, params=params)
    case = draw_case(shape, 3)
    wanted = case.attend()
    for request, seen in enumerate(case.metadata.kv_lens.view(2, 2)[:, 0].tolist()):
        case.metadata.page_table[request, : max(0, seen - 9) // 4] = 1 << 24
    assert (case.metadata.page_table == 1 << 24).any()
    for splits in (1, 3):
        torch.testing.assert_close(case.attend(backend(splits)), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("splits", "converts_float8"), [(1, False), (3, False), (3, True)])
@pytest.mark.parametrize("name", ["decode", "chain", "trees of different sizes", "ragged"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_float8_pools_are_read_by_their_scales(
    dtype: torch.dtype, name: str, splits: int, converts_float8: bool
) -> None:
    if converts_float8 and not float8_is_native(DEVICE) and DEVICE.type == "cuda":
        pytest.skip("this device has no instructions for float8")
    case = draw_case(replace(SHAPES[name], dtype=dtype, pool_dtype=FLOAT8), 2)
    assert case.kv.scale.k != case.kv.scale.v
    assert_equals_reference(case, splits, converts_float8)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    tree_rows = draw(st.sampled_from((0, 1, 17)))
    count = draw(st.integers(1, 9))
    has_chunks, reach = draw(st.booleans()), draw(st.sampled_from((None, 1, 5, 40)))
    lens = st.just(count) if draw(st.booleans()) else st.integers(0, 9)
    return Shape(
        qo_lens=tuple(draw(st.lists(lens, min_size=1, max_size=3))),
        longest=draw(st.integers(9, 140)),
        page_size=draw(st.sampled_from((1, 2, 5, 16, 64, 256))),
        kv_heads=draw(st.sampled_from((1, 2))),
        shared=draw(st.sampled_from((1, 3, 4, 8))),
        dim=draw(st.sampled_from((8, 64, 72, 128))),
        tree_rows=tree_rows,
        dtype=draw(st.sampled_from(tuple(TOLERANCE))),
        is_strided=draw(st.booleans()),
        is_causal=True,
        v_dim=draw(st.sampled_from((None, 24))),
        params=AttentionParams(
            scale=draw(st.sampled_from((None, 0.3))),
            logit_softcap=draw(st.sampled_from((None, 2.0))),
            sliding_window=None if has_chunks else reach,
            attention_chunk_size=reach if has_chunks else None,
        ),
        has_sinks=draw(st.booleans()),
    )


@settings(derandomize=True, deadline=None, max_examples=25)
@given(shapes(), st.integers(1, 5), st.integers(0, 99))
def test_random_shapes(shape: Shape, splits: int, seed: int) -> None:
    assert_equals_reference(draw_case(shape, seed), splits)


@pytest.mark.parametrize("splits", [1, 3])
def test_it_launches_its_kernels_and_nothing_else(splits: int) -> None:
    case = draw_case(SHAPES["tree"], 3)
    with launches() as counts:
        case.attend(backend(splits))
    merged = {"merge_splits": 1} if splits > 1 else {}
    assert counts == {"attend": 1} | merged


def test_without_lse_the_result_is_the_same() -> None:
    case = draw_case(SHAPES["chain"], 4)
    for splits in (1, 3):
        out, _ = case.attend_with_lse(backend(splits))
        assert torch.equal(case.attend(backend(splits)), out)


@pytest.mark.parametrize("splits", [1, 3])
def test_a_row_that_sees_nothing_gets_zeros(splits: int) -> None:
    case = draw_case(SHAPES["chain"], 5)
    kv_lens = case.metadata.kv_lens.clone()
    kv_lens[3], kv_lens[8:] = 0, 0
    case = replace(case, metadata=replace(case.metadata, kv_lens=kv_lens))
    assert_equals_reference(case, splits)
    out, lse = case.attend_with_lse(backend(splits))
    assert out[3].eq(0).all()
    assert out[8:].eq(0).all()
    assert lse[3].eq(-torch.inf).all()


@pytest.mark.parametrize("splits", [1, 3])
def test_poison_in_a_visible_row_shows(splits: int) -> None:
    case = draw_case(SHAPES["decode"], 6)
    seen = [pooled for pooled, _ in seen_rows(case)]
    row = max(range(3), key=lambda number: len(seen[number]))
    case.kv.v[seen[row][-1]] = torch.nan
    assert case.attend(backend(splits))[row].isnan().all()


@pytest.mark.parametrize("splits", [1, 3])
def test_great_scores_do_not_overflow(splits: int) -> None:
    case = draw_case(SHAPES["chain"], 12)
    assert_equals_reference(replace(case, q=case.q * 100), splits)


def test_a_bound_beyond_what_is_seen_changes_nothing() -> None:
    # As in a CUDA graph: the table is as wide as it ever gets, its rest is padding.
    case = draw_case(SHAPES["chain"], 7)
    table = torch.nn.functional.pad(case.metadata.page_table, (0, 90))
    wide = replace(case.metadata, page_table=table, max_kv_len=table.shape[1] * 16)
    wanted = case.attend()
    for splits in (1, 4):
        out = replace(case, metadata=wide).attend(backend(splits))
        torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-5)


def test_where_requests_begin_may_be_given() -> None:
    case = draw_case(SHAPES["ragged"], 8)
    starts = torch.tensor([0, 1, 1, 8, 11], device=DEVICE)
    given_starts = replace(case, metadata=replace(case.metadata, cu_seqlens_q=starts))
    assert torch.equal(given_starts.attend(backend(1)), case.attend(backend(1)))


def test_a_small_workspace_means_fewer_splits() -> None:
    case = draw_case(SHAPES["chain"], 9)
    rows, heads, dim = case.q.shape
    two_splits = 2 * rows * heads * (dim + 1) * 4
    for size, kernels in ((two_splits, 2), (two_splits - 4, 1), (0, 1)):
        with launches() as counts:
            out = case.attend(backend(5, workspace_bytes=size))
        assert counts.total() == kernels
        torch.testing.assert_close(out, case.attend(), atol=1e-5, rtol=1e-5)


def test_an_empty_batch_launches_nothing() -> None:
    case = draw_case(Shape(qo_lens=(0, 0)), 10)
    with launches() as counts:
        assert case.attend(backend(3)).shape == case.q.shape
    assert not counts


def test_offsets_beyond_31_bits() -> None:
    # Memory that nobody touches is not really taken.
    rows, dim = (1 << 31) // 64 + 64, 64
    pool = torch.empty(rows, 1, dim, dtype=FLOAT8, device=DEVICE)
    last = rows // 16 - 1
    pool.view(torch.uint8)[last * 16 :] = 0x38  # 1.0
    small = draw_case(Shape((1,), 16, 16, 1, 2, dim, pool_dtype=FLOAT8), 11)
    table, kv_lens = (torch.tensor(ids, device=DEVICE) for ids in ([[last]], [9]))
    metadata = replace(small.metadata, page_table=table, kv_lens=kv_lens)
    case = AttentionArgs(small.q, LayerKV(pool, pool, small.kv.scale), metadata, None)
    assert case.attend(backend(1)).eq(small.kv.scale.v).all()
