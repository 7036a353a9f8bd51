"""Paged attention equals a loop over rows and heads for any metadata, and never reads poison."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_kernels import FLOAT8, AttentionMetadata, KvScale, LayerKV, TreeKV
from specdecode_kernels.testing import AttentionArgs, Shape, draw_case, seen_rows
from specdecode_kernels.torch import attention

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


def make_case(seed: int, dtype: torch.dtype, with_tree: bool) -> AttentionArgs:
    """Draw metadata: ragged query rows, shuffled pages, unseen rows full of NaN."""
    chance, generator = random.Random(seed), torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    page_size = chance.choice((1, 2, 3, 16))
    kv_heads, shared = chance.choice((1, 2, 3)), chance.choice((1, 2, 4))
    dim, batch = chance.choice((2, 8, 10)), chance.randint(1, 5)
    longest = chance.randint(1, 20)
    lens = [chance.choice((1, 1, 3, 5)) for _ in range(batch)]
    pages = -(-longest // page_size)
    page_ids = chance.sample(range(1, 1 + batch * pages), batch * pages)
    table = torch.tensor(page_ids).view(batch, pages)
    kv_lens = torch.tensor([chance.randint(0, longest) for _ in range(sum(lens))])
    metadata = AttentionMetadata(table, page_size, tuple(lens), kv_lens, longest)
    k_pool = normal((1 + batch * pages) * page_size, kv_heads, dim)
    v_pool = normal(*k_pool.shape)
    unseen = set(range(k_pool.shape[0])) - {row for rows in seen_rows(metadata) for row in rows}
    k_pool[sorted(unseen)] = torch.nan
    v_pool[sorted(unseen)] = torch.nan
    q = normal(sum(lens), kv_heads * shared, dim)
    if not with_tree:
        return AttentionArgs(q, LayerKV(k_pool, v_pool), metadata, None)
    tree_rows = chance.randint(1, 6)
    mask = torch.rand(batch, max(lens), tree_rows, generator=generator) < 0.5
    k, v = normal(batch, tree_rows, kv_heads, dim), normal(batch, tree_rows, kv_heads, dim)
    for request, count in enumerate(lens):
        unseen_nodes = ~mask[request, :count].any(dim=0)
        k[request, unseen_nodes] = v[request, unseen_nodes] = torch.nan
    return AttentionArgs(q, LayerKV(k_pool, v_pool), metadata, TreeKV(k, v, mask))


def owners_of(metadata: AttentionMetadata) -> list[tuple[int, int]]:
    """List the request of every query row, and the place of the row among its rows."""
    return [(b, place) for b, count in enumerate(metadata.qo_lens) for place in range(count)]


def attend_slowly(case: AttentionArgs) -> Tensor:
    """Compute row by row, head by head, in float64."""
    output = torch.zeros(case.q.shape, dtype=torch.float64)
    shared = case.q.shape[1] // case.kv.k.shape[1]
    owners = owners_of(case.metadata)
    for row, rows in enumerate(seen_rows(case.metadata)):
        for head in range(case.q.shape[1]):
            k, v = (p[rows, head // shared].double() for p in (case.kv.k, case.kv.v))
            if case.tree_kv is not None:
                batch, picked = owners[row][0], case.tree_kv.tree_mask[owners[row]]
                k = torch.cat((k, case.tree_kv.k[batch, picked, head // shared].double()))
                v = torch.cat((v, case.tree_kv.v[batch, picked, head // shared].double()))
            weights = torch.softmax(k @ case.q[row, head].double() / k.shape[1] ** 0.5, dim=0)
            output[row, head] = weights @ v
    return output


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
    torch.testing.assert_close(result.double(), attend_slowly(case), atol=tolerance, rtol=tolerance)


def lse_slowly(case: AttentionArgs) -> Tensor:
    """Sum the exponents of the scores row by row, head by head, in float64."""
    lse = torch.full(case.q.shape[:2], -torch.inf, dtype=torch.float64)
    shared = case.q.shape[1] // case.kv.k.shape[1]
    owners = owners_of(case.metadata)
    for row, rows in enumerate(seen_rows(case.metadata)):
        for head in range(case.q.shape[1]):
            k = case.kv.k[rows, head // shared].double()
            if case.tree_kv is not None:
                batch, picked = owners[row][0], case.tree_kv.tree_mask[owners[row]]
                k = torch.cat((k, case.tree_kv.k[batch, picked, head // shared].double()))
            scores = k @ case.q[row, head].double() / k.shape[1] ** 0.5
            lse[row, head] = scores.exp().sum().log()
    return lse


@pytest.mark.usefixtures("_both_ways")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("with_tree", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_lse_equals_the_loop(seed: int, with_tree: bool, dtype: torch.dtype) -> None:
    case = make_case(seed, dtype, with_tree)
    out, lse = case.attend_with_lse()
    assert torch.equal(out, case.attend())
    assert lse.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(lse.double(), lse_slowly(case), atol=1e-5, rtol=1e-5)


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
    row = next(number for number, rows in enumerate(seen_rows(case.metadata)) if rows)
    case.kv.v[seen_rows(case.metadata)[row][0]] = torch.nan
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
