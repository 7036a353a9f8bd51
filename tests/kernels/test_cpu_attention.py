"""Attention on a CPU equals the reference, never reads poison, and keeps bits over batch shapes."""

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_kernels import (
    DEFAULT_ATTENTION,
    TORCH,
    AttentionMetadata,
    AttentionParams,
    Backend,
    LayerKV,
    TreeKV,
)
from specdecode_kernels.testing import AttentionArgs, Shape, backend_of, draw_case
from tests.kernels.attention_params import draw_params
from tests.kernels.launched import launches

CPU = torch.device("cpu")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
BY_PAGES = Shape((1, 3, 3, 2), page_size=3, kv_heads=2, shared=2, dim=8, longest=70)
SHAPES = {
    "decode": Shape((1,) * 5, page_size=16, kv_heads=3, shared=1, dim=16, longest=40),
    "verify": Shape((4,) * 3, page_size=4, kv_heads=2, shared=4, dim=8, longest=150),
    "ragged": BY_PAGES,
    "prompt": Shape((37,), page_size=1, kv_heads=1, shared=3, dim=10, longest=600),
    "wide heads": Shape((2, 1), page_size=16, kv_heads=2, shared=1, dim=200, longest=90),
    "two parts of a head": Shape((5,), page_size=2, kv_heads=1, shared=2, dim=128, longest=33),
    "tree": Shape((2,) * 4, page_size=4, kv_heads=2, shared=2, dim=8, longest=20, tree_rows=5),
    "latents": Shape(
        (3, 1), page_size=4, kv_heads=1, shared=20, dim=72, v_dim=64, longest=90, is_latent=True
    ),
    "latents of a tree": Shape(
        (5, 5), page_size=1, kv_heads=1, shared=3, dim=28, v_dim=20, tree_rows=5, is_latent=True
    ),
    "latents of many heads": Shape(
        (2,), page_size=16, kv_heads=1, shared=128, dim=576, v_dim=512, longest=40, is_latent=True
    ),
    "a row and its tree": Shape(
        (1,) * 3, page_size=4, kv_heads=2, shared=1, dim=64, longest=20, tree_rows=7
    ),
}
LENGTHS = (1, 2, 3, 4, 15, 16, 17, 63, 64, 65, 128, 200, 513)
RUNS = (2, 3, 4, 5, 8, 33, 70)


def cpu_backend(dtype: torch.dtype = torch.float32) -> Backend:
    """A backend that no metadata was brought to yet."""
    return backend_of("cpu", CPU, dtype)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", SHAPES)
def test_it_equals_the_reference(name: str, dtype: torch.dtype, seed: int) -> None:
    case = draw_case(replace(SHAPES[name], dtype=dtype), seed)
    with launches() as counts:
        got = case.attend(cpu_backend(dtype))
    assert counts == {"attend": 1}
    wanted = case.attend(TORCH)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    torch.testing.assert_close(got, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", SHAPES)
def test_params_and_head_sizes_equal_the_reference(
    name: str, dtype: torch.dtype, seed: int
) -> None:
    case = draw_case(
        draw_params(replace(SHAPES[name], dtype=dtype), random.Random(f"{name} {seed}")), seed
    )
    with launches() as counts:
        got = case.attend(cpu_backend(dtype))
    assert counts == {"attend": 1}
    wanted = case.attend(TORCH)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    torch.testing.assert_close(got, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


@pytest.mark.parametrize(
    "params", [AttentionParams(sliding_window=10), AttentionParams(attention_chunk_size=10)]
)
def test_pages_before_every_window_or_chunk_are_not_read(params: AttentionParams) -> None:
    """Window layers free them: an id that lies outside the pool would be read out of bounds."""
    case = draw_case(Shape((3, 1), longest=64, is_causal=True, params=params), 0)
    wanted = case.attend(cpu_backend())
    for request, end in enumerate(case.metadata.kv_lens[[2, 3]].tolist()):
        kept = max(0, end - 2 - 10) // case.metadata.page_size
        case.metadata.page_table[request, :kept] = 1 << 40
    assert (case.metadata.page_table == 1 << 40).any()
    assert torch.equal(case.attend(cpu_backend()), wanted)


def test_what_is_not_laid_out_by_row_goes_to_the_reference() -> None:
    case = draw_case(replace(BY_PAGES, is_strided=True), 0)
    with launches() as counts:
        torch.testing.assert_close(
            case.attend(cpu_backend()), case.attend(TORCH), atol=1e-5, rtol=1e-5
        )
    assert not counts


def test_second_metadata_of_one_backend_is_not_taken_for_the_first() -> None:
    backend = cpu_backend()
    for seed in range(4):
        case = draw_case(SHAPES["ragged"], seed)
        for _ in range(2):
            torch.testing.assert_close(
                case.attend(backend), case.attend(TORCH), atol=1e-5, rtol=1e-5
            )


def test_metadata_may_be_refilled_between_calls() -> None:
    """As CUDA graphs do: the tensors stay, their contents change."""
    backend = cpu_backend()
    case = draw_case(SHAPES["verify"], 0)
    before = case.attend(backend)
    metadata, order = case.metadata, torch.tensor([2, 0, 1])  # requests are reordered
    metadata.page_table.copy_(metadata.page_table[order])
    metadata.kv_lens.copy_(metadata.kv_lens.view(3, -1)[order].flatten())
    assert not torch.equal(case.attend(backend), before)
    torch.testing.assert_close(case.attend(backend), case.attend(TORCH), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("dim", [6, 16, 40, 64, 96, 128])
@pytest.mark.parametrize("shared", [1, 3, 4])
def test_a_row_has_the_same_bits_alone_in_a_run_and_beside_others(
    shared: int, dim: int, dtype: torch.dtype
) -> None:
    assert_rows_keep_their_bits(_Text(dim, shared, dtype), LENGTHS)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("window", [None, 5, 64, 200])
@pytest.mark.parametrize("dims", [(6, 40), (40, 6), (64, 64)])
def test_a_row_keeps_its_bits_with_params(
    dims: tuple[int, int], window: int | None, dtype: torch.dtype
) -> None:
    params = AttentionParams(
        scale=0.3, logit_softcap=2.0, sliding_window=window, sinks=torch.linspace(-1, 2, 6)
    )
    assert_rows_keep_their_bits(_Text(dims[0], 3, dtype, dims[1], params), LENGTHS[3::2])


def assert_rows_keep_their_bits(text: "_Text", lengths: tuple[int, ...]) -> None:
    for length in lengths:
        alone = text.attend((length,), 1)[-1]
        for queries in (queries for queries in RUNS if queries <= length):
            assert torch.equal(text.attend((length,), queries)[-1], alone), (length, queries)
        for others in ((513,), (7, 300, 130)):
            assert torch.equal(text.attend((*others, length), 1)[-1], alone), (length, others)


class _Text:
    """One text in as many pages as it takes, which every request of a batch shares."""

    def __init__(
        self,
        dim: int,
        shared: int,
        dtype: torch.dtype,
        v_dim: int | None = None,
        params: AttentionParams = DEFAULT_ATTENTION,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        rows, page, kv_heads = 528, 16, 2
        self._k, self._v = (
            torch.randn(rows, kv_heads, width, generator=generator).to(dtype)
            for width in (dim, v_dim or dim)
        )
        self._params = params
        self._q = torch.randn(rows, kv_heads * shared, dim, generator=generator).to(dtype)
        self._pages = torch.arange(rows // page)
        self._page = page

    def attend(self, lengths: tuple[int, ...], queries: int) -> Tensor:
        """Attend from the last `queries` rows of every length."""
        seen = torch.tensor(lengths)[:, None] - torch.arange(queries - 1, -1, -1)
        metadata = AttentionMetadata(
            page_table=self._pages.repeat(len(lengths), 1),
            page_size=self._page,
            qo_lens=(queries,) * len(lengths),
            kv_lens=seen.flatten(),
            max_kv_len=max(lengths),
        )
        q = self._q[seen.flatten() - 1]
        kv = LayerKV(self._k, self._v)
        return AttentionArgs(q, kv, metadata, None, self._params).attend(cpu_backend(q.dtype))


@pytest.mark.parametrize("limit", [None, 1, 2, 3, 4, 64])
@pytest.mark.parametrize("name", ["sliding_window", "attention_chunk_size"])
@pytest.mark.parametrize("prefix", [0, 5, 60, 63, 125, 127, 300, 510])
def test_a_node_of_a_tree_has_the_bits_of_the_same_row_in_a_chain(
    prefix: int, name: str, limit: int | None
) -> None:
    """Node 3 hangs on node 1, which hangs on the root: a chain of those three is the same."""
    path, nodes, dim = (0, 1, 3), 4, 64
    generator = torch.Generator().manual_seed(prefix)
    k, v = (torch.randn(prefix + nodes, 1, dim, generator=generator) for _ in range(2))
    q = torch.randn(nodes, 2, dim, generator=generator)
    pages = torch.arange(1024)[None]
    chain_rows = [*range(prefix), *(prefix + node for node in path)]
    seen = torch.arange(prefix + 1, prefix + 1 + len(path))
    chain = AttentionMetadata(pages, 1, (len(path),), seen, prefix + len(path))
    k_pool, v_pool = (torch.cat((x[chain_rows], torch.zeros(1024, 1, dim)))[:1024] for x in (k, v))
    params = AttentionParams(sinks=torch.ones(2), logit_softcap=3.0, **{name: limit})
    wanted = cpu_backend().attend(q[list(path)], LayerKV(k_pool, v_pool), chain, None, params)
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]).bool()[None]
    tree_kv = TreeKV(k[None, prefix:], v[None, prefix:], mask)
    tree = AttentionMetadata(pages, 1, (nodes,), torch.full((nodes,), prefix), max(prefix, 1))
    rest = torch.full((1024, 1, dim), torch.nan)
    k_pool, v_pool = (torch.cat((x[:prefix], rest))[:1024] for x in (k, v))
    got = cpu_backend().attend(q, LayerKV(k_pool, v_pool), tree, tree_kv, params)
    assert torch.equal(got[list(path)], wanted)


def test_a_request_that_sees_only_its_tree_reads_no_poison() -> None:
    poison = torch.full((16, 1, 4), torch.nan)
    table = torch.zeros(2, 1, dtype=torch.int64)
    metadata = AttentionMetadata(table, 16, (1, 1), torch.tensor([0, 0]), 16)
    k = v = torch.ones(2, 1, 1, 4)
    tree_kv = TreeKV(k, v, torch.tensor([[[True]], [[False]]]))
    got = cpu_backend().attend(torch.ones(2, 1, 4), LayerKV(poison, poison), metadata, tree_kv)
    assert torch.equal(got, torch.tensor([1.0, 0.0]).view(2, 1, 1).expand(2, 1, 4))


def test_a_tree_row_that_nobody_sees_may_be_poison() -> None:
    generator = torch.Generator().manual_seed(0)
    k, v = (torch.randn(1, 3, 1, 8, generator=generator) for _ in range(2))
    q = torch.randn(2, 1, 8, generator=generator)
    metadata = AttentionMetadata(
        torch.zeros(1, 1, dtype=torch.int64), 16, (2,), torch.tensor([0, 0]), 0
    )
    pool = torch.full((16, 1, 8), torch.nan)
    mask = torch.tensor([[[True, False, False], [True, False, True]]])
    wanted = cpu_backend().attend(q, LayerKV(pool, pool), metadata, TreeKV(k, v, mask))
    k[:, 1], v[:, 1] = torch.nan, torch.nan
    got = cpu_backend().attend(q, LayerKV(pool, pool), metadata, TreeKV(k, v, mask))
    assert torch.equal(got, wanted)
    assert got.isfinite().all()


@pytest.mark.parametrize("place", ["q", "k", "v"])
def test_not_a_number_shows(place: str) -> None:
    """Where it is read; rows that do not see it stay as they are."""
    case = draw_case(SHAPES["decode"], 0)
    wanted = case.attend(cpu_backend())
    metadata = case.metadata
    row = int(metadata.page_table[2, 0]) * metadata.page_size  # the first key of request 2
    if place == "q":
        case.q[2, 1, 3] = torch.nan
    else:
        getattr(case.kv, place)[row, 1, 3] = torch.nan
    got = case.attend(cpu_backend())
    assert got[2, 1].isnan().any()
    assert torch.equal(got[2, [0, 2]], wanted[2, [0, 2]])
    others = [0, 1, 3, 4]
    assert torch.equal(got[others], wanted[others])


def test_trees_of_different_sizes_have_the_bits_of_each_alone() -> None:
    case = draw_case(Shape(qo_lens=(2, 5, 1), tree_rows=5, longest=70, dim=64), 4)
    assert case.tree_kv is not None
    wanted, start = [], 0
    for request, count in enumerate(case.metadata.qo_lens):
        rows, own = slice(start, start + count), slice(request, request + 1)
        metadata = replace(
            case.metadata,
            page_table=case.metadata.page_table[own],
            qo_lens=(count,),
            kv_lens=case.metadata.kv_lens[rows],
        )
        tree_kv = TreeKV(*(part[own] for part in case.tree_kv))
        alone = AttentionArgs(case.q[rows], case.kv, metadata, tree_kv)
        wanted.append(alone.attend(cpu_backend()))
        start += count
    assert torch.equal(case.attend(cpu_backend()), torch.cat(wanted))
