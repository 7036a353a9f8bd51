"""Paged attention equals a loop over rows and heads for any metadata, and never reads poison."""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode_kernels import FLOAT8, AttentionMetadata, KvScale, LayerKV
from specdecode_kernels.testing import AttentionArgs, Shape, draw_case, seen_rows
from specdecode_kernels.torch import attention
from tests.kernels.attention_params import draw_params

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def make_case(
    seed: int, dtype: torch.dtype, with_tree: bool, *, with_params: bool = False
) -> AttentionArgs:
    """Draw a shape: ragged query rows, shuffled pages, unseen rows full of NaN."""
    chance = random.Random(seed)
    lens = [chance.choice((1, 1, 3, 5)) for _ in range(chance.randint(1, 5))]
    shape = Shape(
        qo_lens=tuple(lens),
        page_size=chance.choice((1, 2, 3, 16)),
        kv_heads=chance.choice((1, 2, 3)),
        shared=chance.choice((1, 2, 4)),
        dim=chance.choice((2, 8, 10)),
        longest=chance.randint(1, 20),
        tree_rows=chance.randint(1, 6) if with_tree else 0,
        dtype=dtype,
    )
    return draw_case(draw_params(shape, chance) if with_params else shape, seed)


def attend_slowly(case: AttentionArgs) -> tuple[Tensor, Tensor]:
    """Compute row by row, head by head, in float64; return the log-sum-exp as well."""
    q_heads, v_dim = case.q.shape[1], case.kv.v.shape[2]
    output = torch.zeros(len(case.q), q_heads, v_dim, dtype=torch.float64)
    lse = torch.full(case.q.shape[:2], -torch.inf, dtype=torch.float64)
    params, shared = case.params, q_heads // case.kv.k.shape[1]
    owners = [b for b, count in enumerate(case.metadata.qo_lens) for _ in range(count)]
    for row, (rows, tree_rows) in enumerate(seen_rows(case)):
        for head in range(q_heads):
            k, v = (p[rows, head // shared].double() for p in (case.kv.k, case.kv.v))
            if case.tree_kv is not None:
                at = owners[row], tree_rows, head // shared
                k = torch.cat((k, case.tree_kv.k[at].double()))
                v = torch.cat((v, case.tree_kv.v[at].double()))
            scores = k @ case.q[row, head].double() * (params.scale or k.shape[1] ** -0.5)
            if params.logit_softcap is not None:
                scores = params.logit_softcap * torch.tanh(scores / params.logit_softcap)
            total = scores.exp().sum()
            if params.sinks is not None:
                total += params.sinks[head].double().exp()
            lse[row, head] = total.log()
            if len(scores):
                output[row, head] = scores.exp() / total @ v
    return output, lse


@pytest.fixture(params=["by row", "in batches"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reference computes on a CPU, and as on any other device."""
    if request.param == "in batches":
        compute_in_batches(monkeypatch)


def compute_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "computes_by_row", lambda _: False)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("with_tree", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_it_equals_the_loop(seed: int, with_tree: bool, dtype: torch.dtype) -> None:
    case = make_case(seed, dtype, with_tree)
    assert case.kv.k.isnan().any(), "page 0 at least is never seen"
    result = case.attend()
    assert result.dtype == dtype
    tolerance = TOLERANCE[dtype]
    wanted, _ = attend_slowly(case)
    torch.testing.assert_close(result.double(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("with_tree", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_params_and_head_sizes_equal_the_loop(
    seed: int, with_tree: bool, dtype: torch.dtype
) -> None:
    case = make_case(seed, dtype, with_tree, with_params=True)
    wanted, wanted_lse = attend_slowly(case)
    out, lse = case.attend_with_lse()
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-5, rtol=1e-5)


def test_drawn_params_have_each_feature() -> None:
    drawn = [make_case(seed, torch.float64, True, with_params=True) for seed in range(25)]
    for name in ("scale", "logit_softcap", "sliding_window", "attention_chunk_size", "sinks"):
        given = [getattr(case.params, name) is not None for case in drawn]
        assert 5 <= sum(given) <= 20, name
    assert 5 <= sum(case.kv.k.shape != case.kv.v.shape for case in drawn) <= 20
    assert any(
        0 < len(rows) < 2 and not pooled for case in drawn for pooled, rows in seen_rows(case)
    )


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("with_tree", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_lse_equals_the_loop(seed: int, with_tree: bool, dtype: torch.dtype) -> None:
    case = make_case(seed, dtype, with_tree)
    out, lse = case.attend_with_lse()
    assert torch.equal(out, case.attend())
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(lse.double(), attend_slowly(case)[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tree_rows", [0, 5])
def test_float8_pools_are_read_by_their_scales(tree_rows: int) -> None:
    case = draw_case(Shape(qo_lens=(3, 3), tree_rows=tree_rows, pool_dtype=FLOAT8), 1)
    assert case.kv.scale == KvScale(0.5, 0.25)
    wide = LayerKV(case.kv.k.float() * 0.5, case.kv.v.float() * 0.25)
    wanted = replace(case, kv=wide).attend()
    torch.testing.assert_close(case.attend(), wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("with_tree", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_slices_of_query_rows_equal_the_whole(
    monkeypatch: pytest.MonkeyPatch, seed: int, with_tree: bool
) -> None:
    compute_in_batches(monkeypatch)
    case = make_case(seed, torch.float32, with_tree)
    whole = case.attend()
    monkeypatch.setattr(attention, "MAX_SCORES", 1)
    assert torch.equal(case.attend(), whole)


@pytest.mark.usefixtures("_both_ways")
def test_a_row_that_sees_nothing_gets_zeros() -> None:
    case = make_case(3, torch.float32, with_tree=False)
    metadata = replace(case.metadata, kv_lens=torch.zeros_like(case.metadata.kv_lens))
    assert torch.equal(replace(case, metadata=metadata).attend(), torch.zeros_like(case.q))
    assert torch.equal(
        replace(case, metadata=replace(metadata, max_kv_len=0)).attend(), torch.zeros_like(case.q)
    )


@pytest.mark.usefixtures("_both_ways")
def test_poison_in_a_visible_row_shows() -> None:
    case = make_case(0, torch.float32, with_tree=False)
    seen = [pooled for pooled, _ in seen_rows(case)]
    row = next(number for number, rows in enumerate(seen) if rows)
    case.kv.v[seen[row][0]] = torch.nan
    assert case.attend()[row].isnan().all()


def test_an_empty_batch_gives_no_rows() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    metadata = AttentionMetadata(nothing.view(0, 1), 4, (), nothing, 0)
    pool = torch.zeros(8, 1, 2)
    empty = AttentionArgs(torch.zeros(0, 2, 2), LayerKV(pool, pool), metadata, None)
    assert empty.attend().shape == (0, 2, 2)


def test_requests_without_rows_are_skipped() -> None:
    case = make_case(5, torch.float64, with_tree=False)
    table = torch.cat((torch.zeros_like(case.metadata.page_table[:1]), case.metadata.page_table))
    metadata = replace(case.metadata, page_table=table, qo_lens=(0, *case.metadata.qo_lens))
    torch.testing.assert_close(replace(case, metadata=metadata).attend(), case.attend())


@pytest.mark.parametrize("with_tree", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_numbers_of_rows_that_the_device_alone_knows_are_read_there(
    seed: int, with_tree: bool
) -> None:
    case = make_case(seed, torch.float64, with_tree)
    lens = case.metadata.qo_lens
    starts = torch.tensor((0, *lens)).cumsum(0)
    known: dict[str, Any] = {
        "qo_lens": lens[::-1],
        "cu_seqlens_q": starts,
        "qo_lens_on_device": True,
    }
    metadata = replace(case.metadata, **known)
    found = replace(case, metadata=metadata).attend()
    torch.testing.assert_close(found, case.attend(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize(
    ("qo_lens", "computations"), [((1,) * 64, 1), ((4,) * 16, 1), ((1, 1, 7, 1), 3)]
)
def test_equal_neighbours_are_one_computation(
    monkeypatch: pytest.MonkeyPatch, qo_lens: tuple[int, ...], computations: int
) -> None:
    batches = []
    original = attention._sliced_attention

    def counting(seen: attention._Seen) -> Tensor:
        batches.append(seen.q.shape[0])
        return original(seen)

    compute_in_batches(monkeypatch)
    monkeypatch.setattr(attention, "_sliced_attention", counting)
    rows, pool = sum(qo_lens), torch.zeros(8, 1, 2)
    table = torch.zeros(len(qo_lens), 2, dtype=torch.int64)
    kv_lens = torch.ones(rows, dtype=torch.int64)
    metadata = AttentionMetadata(table, 4, qo_lens, kv_lens, 8)
    AttentionArgs(torch.zeros(rows, 1, 2), LayerKV(pool, pool), metadata, None).attend()
    assert len(batches) == computations
    assert sum(batches) == len(qo_lens)
