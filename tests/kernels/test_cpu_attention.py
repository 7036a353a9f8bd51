"""Attention on a CPU equals the reference, never reads poison, and keeps bits over batch shapes."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specdecode_kernels import AttentionLayout, KvScale, Tail
from specdecode_kernels.backends import TORCH, attend_probe
from specdecode_kernels.backends.cpu_backend import CpuBackend, filled_up
from specdecode_kernels.testing import Case, Shape, draw_case

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
BY_PAGES = Shape((1, 3, 3, 2), page_size=3, kv_heads=2, shared=2, dim=8, longest=70)
SHAPES = {
    "decode": Shape((1,) * 5, page_size=16, kv_heads=3, shared=1, dim=16, longest=40),
    "verify": Shape((4,) * 3, page_size=4, kv_heads=2, shared=4, dim=8, longest=150),
    "ragged": BY_PAGES,
    "prompt": Shape((37,), page_size=1, kv_heads=1, shared=3, dim=10, longest=600),
    "strided": replace(BY_PAGES, is_strided=True),
    "tail": Shape((2,) * 4, page_size=4, kv_heads=2, shared=2, dim=8, longest=20, tail_rows=5),
}


def run(backend: object, case: Case) -> torch.Tensor:
    arguments = (case.q, case.k_pool, case.v_pool, case.layout, case.tail, case.scale)
    return backend.attend(*arguments)  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", SHAPES)
def test_it_equals_the_reference(name: str, dtype: torch.dtype, seed: int) -> None:
    case = draw_case(replace(SHAPES[name], dtype=dtype), seed)
    if case.tail is not None:
        case = replace(case, tail=replace(case.tail, is_exact=False))
    got, wanted = run(CpuBackend(), case), run(TORCH, case)
    assert (got.dtype, got.shape) == (wanted.dtype, wanted.shape)
    torch.testing.assert_close(got, wanted, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_a_second_layout_of_one_backend_is_not_taken_for_the_first() -> None:
    backend = CpuBackend()
    for seed in range(4):
        case = draw_case(SHAPES["ragged"], seed)
        for _ in range(2):
            torch.testing.assert_close(run(backend, case), run(TORCH, case), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(6))
def test_an_exact_tail_equals_the_reference(seed: int) -> None:
    case = draw_case(SHAPES["tail"], seed)
    assert case.tail is not None
    assert case.tail.is_exact
    got, wanted = run(CpuBackend(), case), run(TORCH, case)
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("prefix", [0, 5, 60, 63, 125, 127, 300, 510])
def test_a_node_of_a_tree_has_the_bits_of_the_same_row_in_a_chain(prefix: int) -> None:
    """Node 3 hangs on node 1, which hangs on the root: a chain of those three is the same."""
    path, nodes, dim = (0, 1, 3), 4, 64
    generator = torch.Generator().manual_seed(prefix)
    k, v = (torch.randn(prefix + nodes, 1, dim, generator=generator) for _ in range(2))
    q = torch.randn(nodes, 2, dim, generator=generator)
    pages = torch.arange(1024)[None]
    chain_rows = [*range(prefix), *(prefix + node for node in path)]
    seen = torch.arange(prefix + 1, prefix + 1 + len(path))
    chain = AttentionLayout(pages, 1, (len(path),), seen, prefix + len(path))
    pools = [torch.cat((x[chain_rows], torch.zeros(1024, 1, dim)))[:1024] for x in (k, v)]
    wanted = CpuBackend().attend(q[list(path)], *pools, chain, None, KvScale())
    mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 1, 0, 1]]).bool()[None]
    tail = Tail(k[None, prefix:], v[None, prefix:], mask)
    tree = AttentionLayout(pages, 1, (nodes,), torch.full((nodes,), prefix), max(prefix, 1))
    pools = [torch.cat((x[:prefix], torch.full((1024, 1, dim), torch.nan)))[:1024] for x in (k, v)]
    got = CpuBackend().attend(q, *pools, tree, tail, KvScale())
    assert torch.equal(got[list(path)], wanted)


def test_a_request_that_sees_only_its_tail_reads_no_poison() -> None:
    poison = torch.full((16, 1, 4), torch.nan)
    table = torch.zeros(2, 1, dtype=torch.int64)
    layout = AttentionLayout(table, 16, (1, 1), torch.tensor([0, 0]), 16)
    k = v = torch.ones(2, 1, 1, 4)
    tail = Tail(k, v, torch.tensor([[[True]], [[False]]]), is_exact=False)
    got = CpuBackend().attend(torch.ones(2, 1, 4), poison, poison, layout, tail, KvScale())
    assert torch.equal(got, torch.tensor([1.0, 0.0]).view(2, 1, 1).expand(2, 1, 4))


@pytest.mark.parametrize(("length", "filled"), [(1, 64), (65, 128), (129, 512), (513, 1024)])
def test_keys_are_filled_up_to_few_lengths(length: int, filled: int) -> None:
    assert filled_up(length) == filled


def test_the_probe_finds_what_depends_on_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    real = CpuBackend.attend

    def uneven(self: CpuBackend, q: Tensor, *rest: Any) -> Tensor:
        return real(self, q, *rest) + (1e-7 if len(q) == 5 else 0.0)

    monkeypatch.setattr(CpuBackend, "attend", uneven)
    found = attend_probe.differing.__wrapped__(8, 1, torch.get_num_threads())
    assert found == "the last of 5 rows over 63 keys"
