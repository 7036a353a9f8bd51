"""Packed weights compute what plain ones do, and a row's bits do not depend on its neighbours."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels import PackedWeight, choose_backend
from specdecode_kernels.choice import LINEARS_VARIABLE
from specdecode_kernels.testing import backend_of, checked
from tests.kernels.launched import launches

CPU = torch.device("cpu")
SHAPES = [
    (300, 96),
    (96, 200),
    (768, 1536),
    (333, 1025),
    (40, 16),
    (65, 2500),
    (7, 3),
    (5, 1100),
]  # outputs, inputs
MOST_ROWS = 300
BACKENDS = {
    dtype: checked(backend_of("cpu", CPU, dtype)) for dtype in (torch.float32, torch.bfloat16)
}


def pack(weight: Tensor) -> PackedWeight:
    """Pack by the backend of the weight's type."""
    pack_weight = BACKENDS[weight.dtype].pack_weight
    assert pack_weight is not None
    return pack_weight(weight)


def linear(x: Tensor, weight: PackedWeight, bias: Tensor | None = None) -> Tensor:
    """Map by the backend of the weight's type."""
    return BACKENDS[weight.dtype].linear(x, weight, bias)


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal values, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_same_bits_however_many_there_are(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    weight, bias = draw(*shape, dtype=dtype), draw(shape[0], dtype=dtype)
    blocks, x = pack(weight), draw(MOST_ROWS, shape[1], dtype=dtype)
    whole = linear(x, blocks, bias)
    for rows in (*range(1, 71), 96, 127, 128, 129, 130, 257, MOST_ROWS):
        assert torch.equal(linear(x[:rows], blocks, bias), whole[:rows]), f"first {rows} rows"
        last = linear(x[MOST_ROWS - rows :], blocks, bias)
        assert torch.equal(last, whole[MOST_ROWS - rows :]), f"last {rows} rows"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 2, 9, 131])
def test_it_maps_as_the_plain_weight(dtype: torch.dtype, rows: int) -> None:
    weight, bias, x = draw(300, 96, dtype=dtype), draw(300, dtype=dtype), draw(rows, 96).to(dtype)
    blocks = pack(weight)
    wanted = functional.linear(x.double(), weight.double(), bias.double())
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    got = linear(x, blocks, bias)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, atol=tolerance, rtol=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [*SHAPES, (130, 70_000), (3, 128, 36)])
def test_packing_releases_the_memory_of_a_weight_that_is_given_away(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """In parts of 8 MiB (70,000 inputs: one block of outputs); memory around it stays."""
    around = draw(math.prod(shape) + 2048, dtype=dtype)
    weight, before = around[1024:-1024].view(shape), around.clone()
    wanted = pack(weight)
    assert torch.equal(around, before), "by default the weight stays"
    pack_weight = BACKENDS[dtype].pack_weight
    assert pack_weight is not None
    assert torch.equal(pack_weight(weight, release=True).blocks, wanted.blocks)
    for ours in (slice(None, 1024), slice(-1024, None)):
        assert torch.equal(around[ours], before[ours])
    at_borders = 3 * 2 * 4096  # of at most three parts; all other pages are zero
    assert (weight == 0).sum() * weight.itemsize >= weight.nbytes - at_borders


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_plain_weight_comes_back(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = draw(*shape, dtype=dtype)
    blocks = pack(weight)
    assert (blocks.shape, blocks.dtype) == (weight.shape, weight.dtype)
    assert torch.equal(blocks.plain(), weight)


def test_a_map_of_another_width_is_refused() -> None:
    blocks = pack(draw(40, 16))
    with pytest.raises(ValueError, match=r"weight \[40, 16\] does not fit rows of \[2, 15\]"):
        linear(draw(2, 15), blocks)


def test_rows_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows of torch\.float32 takes none of torch\.bf"):
        linear(draw(2, 16, dtype=torch.bfloat16), pack(draw(40, 16)))


def test_rows_and_weights_may_be_parts_of_wider_tensors() -> None:
    weight, x = draw(32, 40), draw(5, 40)
    wanted = linear(x[:, :16].contiguous(), pack(weight[:, :16].contiguous()))
    assert torch.equal(linear(x[:, :16], pack(weight[:, :16])), wanted)
    by_column = x[:, :16].t().contiguous().t()
    assert torch.equal(linear(by_column, pack(weight[:, :16])), wanted)


@pytest.mark.parametrize("threads", [2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    blocks, x = pack(draw(768, 1536)), draw(9, 1536)
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, threads):
            torch.set_num_threads(count)
            results.append(linear(x, blocks))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_packed_and_plain_weights_of_one_backend() -> None:
    weight, x = draw(40, 16), draw(2, 16)
    with launches() as counts:
        plain = BACKENDS[torch.float32].linear(x, weight, None)
        assert not counts
        torch.testing.assert_close(linear(x, pack(weight)), plain)
    assert counts == {"linear": 1}


def why_plain(device: torch.device, dtype: torch.dtype) -> str | None:
    return choose_backend("auto", device, dtype, 64).plain_weights


def test_what_cannot_be_packed_reports_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LINEARS_VARIABLE, raising=False)
    assert why_plain(CPU, torch.float32) is None
    assert "not torch.float64" in str(why_plain(CPU, torch.float64))
    monkeypatch.setenv(LINEARS_VARIABLE, "plain")
    assert why_plain(CPU, torch.float32) == "SPECDECODE_LINEARS is plain"
    monkeypatch.setenv(LINEARS_VARIABLE, "fast")
    with pytest.raises(ValueError, match="'fast' is unknown: set plain"):
        why_plain(CPU, torch.float32)


def test_weights_stay_plain_where_torch_or_a_gpu_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    meta = choose_backend("torch", torch.device("meta"), torch.float32, 64)
    assert "not meta" in str(meta.plain_weights)
    monkeypatch.setenv("SPECDECODE_KERNELS", "torch")
    assert why_plain(CPU, torch.float32) == "SPECDECODE_KERNELS is torch"
