"""Paged attention equals a loop over rows and heads for any layout, and never reads poison."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_kernels import AttentionLayout, KvScale, Tail, attend, attend_with_lse
from specdecode_kernels.reference import attention
from specdecode_kernels.reference.pool import FLOAT8
from specdecode_kernels.testing import Case, Shape, draw_case, seen_rows

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def make_case(seed: int, dtype: torch.dtype, with_tail: bool) -> Case:
    """Draw a layout: ragged query rows, shuffled pages, unseen rows full of NaN."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    page_size = chance.choice((1, 2, 3, 16))
    kv_heads, shared = chance.choice((1, 2, 3)), chance.choice((1, 2, 4))
    dim, batch = chance.choice((2, 8, 10)), chance.randint(1, 5)
    longest = chance.randint(1, 20)
    lens = [chance.choice((1, 1, 3, 5)) for _ in range(batch)]
    if with_tail:
        lens = [lens[0]] * batch
    pages = -(-longest // page_size)
    page_ids = chance.sample(range(1, 1 + batch * pages), batch * pages)
    table = torch.tensor(page_ids).view(batch, pages)
    visible = torch.tensor([chance.randint(0, longest) for _ in range(sum(lens))])
    layout = AttentionLayout(table, page_size, tuple(lens), visible, longest)
    k_pool = normal((1 + batch * pages) * page_size, kv_heads, dim)
    v_pool = normal(*k_pool.shape)
    unseen = set(range(k_pool.shape[0])) - {row for rows in seen_rows(layout) for row in rows}
    k_pool[sorted(unseen)] = torch.nan
    v_pool[sorted(unseen)] = torch.nan
    q = normal(sum(lens), kv_heads * shared, dim)
    if not with_tail:
        return Case(q, k_pool, v_pool, layout, None, KvScale())
    tail_rows = chance.randint(1, 6)
    mask = torch.rand(batch, lens[0], tail_rows, generator=generator) < 0.5
    k, v = normal(batch, tail_rows, kv_heads, dim), normal(batch, tail_rows, kv_heads, dim)
    k[~mask.any(dim=1)] = torch.nan
    v[~mask.any(dim=1)] = torch.nan
    return Case(q, k_pool, v_pool, layout, Tail(k, v, mask), KvScale())


def attend_slowly(case: Case) -> Tensor:
    """Compute row by row, head by head, in float64."""
    output = torch.zeros(case.q.shape, dtype=torch.float64)
    shared = case.q.shape[1] // case.k_pool.shape[1]
    queries = case.layout.query_lens[0]
    for row, rows in enumerate(seen_rows(case.layout)):
        for head in range(case.q.shape[1]):
            k, v = (p[rows, head // shared].double() for p in (case.k_pool, case.v_pool))
            if case.tail is not None:
                batch, picked = row // queries, case.tail.mask[row // queries, row % queries]
                k = torch.cat((k, case.tail.k[batch, picked, head // shared].double()))
                v = torch.cat((v, case.tail.v[batch, picked, head // shared].double()))
            weights = torch.softmax(k @ case.q[row, head].double() / k.shape[1] ** 0.5, dim=0)
            output[row, head] = weights @ v
    return output


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("with_tail", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_it_equals_the_loop(seed: int, with_tail: bool, dtype: torch.dtype) -> None:
    case = make_case(seed, dtype, with_tail)
    assert case.k_pool.isnan().any(), "page 0 at least is never seen"
    result = case.attend()
    assert result.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(result.double(), attend_slowly(case), atol=tolerance, rtol=tolerance)


def lse_slowly(case: Case) -> Tensor:
    """Sum the exponents of the scores row by row, head by head, in float64."""
    lse = torch.full(case.q.shape[:2], -torch.inf, dtype=torch.float64)
    shared = case.q.shape[1] // case.k_pool.shape[1]
    queries = case.layout.query_lens[0]
    for row, rows in enumerate(seen_rows(case.layout)):
        for head in range(case.q.shape[1]):
            k = case.k_pool[rows, head // shared].double()
            if case.tail is not None:
                batch, picked = row // queries, case.tail.mask[row // queries, row % queries]
                k = torch.cat((k, case.tail.k[batch, picked, head // shared].double()))
            scores = k @ case.q[row, head].double() / k.shape[1] ** 0.5
            lse[row, head] = scores.exp().sum().log()
    return lse


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("with_tail", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_lse_equals_the_loop(seed: int, with_tail: bool, dtype: torch.dtype) -> None:
    case = make_case(seed, dtype, with_tail)
    out, lse = attend_with_lse(case.q, case.k_pool, case.v_pool, case.layout, case.tail)
    assert torch.equal(out, case.attend())
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(lse.double(), lse_slowly(case), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("tail_rows", [0, 5])
def test_float8_pools_are_read_by_their_scales(tail_rows: int) -> None:
    case = draw_case(Shape(query_lens=(3, 3), tail_rows=tail_rows, pool_dtype=FLOAT8), 1)
    assert case.scale == KvScale(0.5, 0.25)
    k_pool, v_pool = case.k_pool.float() * 0.5, case.v_pool.float() * 0.25
    wanted = attend(case.q, k_pool, v_pool, case.layout, case.tail)
    torch.testing.assert_close(case.attend(), wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("with_tail", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_slices_of_query_rows_equal_the_whole(
    monkeypatch: pytest.MonkeyPatch, seed: int, with_tail: bool
) -> None:
    case = make_case(seed, torch.float32, with_tail)
    whole = case.attend()
    monkeypatch.setattr(attention, "MAX_SCORES", 1)
    assert torch.equal(case.attend(), whole)


def test_a_row_that_sees_nothing_gets_zeros() -> None:
    case = make_case(3, torch.float32, with_tail=False)
    layout = replace(case.layout, visible=torch.zeros_like(case.layout.visible))
    assert torch.equal(replace(case, layout=layout).attend(), torch.zeros_like(case.q))
    assert torch.equal(
        replace(case, layout=replace(layout, max_visible=0)).attend(), torch.zeros_like(case.q)
    )


def test_poison_in_a_visible_row_shows() -> None:
    case = make_case(0, torch.float32, with_tail=False)
    row = next(number for number, rows in enumerate(seen_rows(case.layout)) if rows)
    case.v_pool[seen_rows(case.layout)[row][0]] = torch.nan
    assert case.attend()[row].isnan().all()


def test_an_empty_batch_gives_no_rows() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    layout = AttentionLayout(nothing.view(0, 1), 4, (), nothing, 0)
    pool = torch.zeros(8, 1, 2)
    assert attend(torch.zeros(0, 2, 2), pool, pool, layout).shape == (0, 2, 2)


def test_requests_without_rows_are_skipped() -> None:
    case = make_case(5, torch.float64, with_tail=False)
    table = torch.cat((torch.zeros_like(case.layout.page_table[:1]), case.layout.page_table))
    layout = replace(case.layout, page_table=table, query_lens=(0, *case.layout.query_lens))
    torch.testing.assert_close(replace(case, layout=layout).attend(), case.attend())


@pytest.mark.parametrize(
    ("query_lens", "computations"), [((1,) * 64, 1), ((4,) * 16, 1), ((1, 1, 7, 1), 3)]
)
def test_equal_neighbours_are_one_computation(
    monkeypatch: pytest.MonkeyPatch, query_lens: tuple[int, ...], computations: int
) -> None:
    batches = []
    original = attention._sliced_attention

    def counting(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        batches.append(q.shape[0])
        return original(q, k, v, mask)

    monkeypatch.setattr(attention, "_sliced_attention", counting)
    rows, pool = sum(query_lens), torch.zeros(8, 1, 2)
    table = torch.zeros(len(query_lens), 2, dtype=torch.int64)
    visible = torch.ones(rows, dtype=torch.int64)
    layout = AttentionLayout(table, 4, query_lens, visible, 8)
    attend(torch.zeros(rows, 1, 2), pool, pool, layout)
    assert len(batches) == computations
    assert sum(batches) == len(query_lens)
