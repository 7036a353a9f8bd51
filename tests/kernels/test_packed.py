"""Packed weights compute what plain ones do, and a row's bits do not depend on its neighbours."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels import PackedWeight, linear, packed

CPU = torch.device("cpu")
SHAPES = [(300, 96), (96, 200), (768, 1536), (333, 1025), (40, 16)]  # outputs, inputs
MOST_ROWS = 300


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal values, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def packed_or_skip(weight: Tensor) -> PackedWeight:
    """Pack, where this machine can."""
    reason = packed.obstacle(CPU, weight.dtype)
    if reason is not None:
        pytest.skip(reason)
    blocks = packed.pack(weight)
    if blocks is None:
        pytest.skip(f"sums of {list(weight.shape)} depend on the number of rows here")
    return blocks


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_same_bits_however_many_there_are(shape: tuple[int, int]) -> None:
    weight, bias = draw(*shape), draw(shape[0])
    blocks, x = packed_or_skip(weight), draw(MOST_ROWS, shape[1])
    whole = linear(x, blocks, bias)
    for rows in (*range(1, 71), 96, 127, 128, 129, 130, 257, MOST_ROWS):
        assert torch.equal(linear(x[:rows], blocks, bias), whole[:rows]), f"first {rows} rows"
        last = linear(x[MOST_ROWS - rows :], blocks, bias)
        assert torch.equal(last, whole[MOST_ROWS - rows :]), f"last {rows} rows"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [0, 1, 2, 9, 131])
def test_it_maps_as_the_plain_weight(dtype: torch.dtype, rows: int) -> None:
    weight, bias, x = draw(300, 96, dtype=dtype), draw(300, dtype=dtype), draw(rows, 96).to(dtype)
    blocks = packed_or_skip(weight)
    wanted = functional.linear(x.double(), weight.double(), bias.double())
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    got = linear(x, blocks, bias)
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), wanted, atol=tolerance, rtol=0.01)


def test_the_plain_weight_comes_back() -> None:
    weight = draw(333, 1025)
    blocks = packed_or_skip(weight)
    assert (blocks.shape, blocks.dtype) == (weight.shape, weight.dtype)
    assert blocks.num_bytes == weight.nbytes
    assert torch.equal(blocks.plain(), weight)


def test_a_map_of_another_width_is_refused() -> None:
    blocks = packed_or_skip(draw(40, 16))
    with pytest.raises(ValueError, match=r"weight \[40, 16\] does not fit rows of \[2, 15\]"):
        linear(draw(2, 15), blocks)


def test_a_weight_whose_sums_depend_on_the_rows_is_not_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packed_or_skip(draw(40, 16))
    real = packed._run

    def uneven(blocks: Tensor, x: Tensor, bias: Tensor | None) -> Tensor:
        return real(blocks, x, bias) + (1e-6 if len(x) > 15 else 0.0)

    monkeypatch.setattr(packed, "_run", uneven)
    assert packed.pack(draw(40, 16)) is None


def test_what_cannot_be_packed_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(packed.VARIABLE, raising=False)
    assert "not torch.float64" in str(packed.obstacle(CPU, torch.float64))
    assert "not cuda" in str(packed.obstacle(torch.device("cuda"), torch.float32))
    monkeypatch.setenv(packed.VARIABLE, "plain")
    assert packed.obstacle(CPU, torch.float32) == "SPECDECODE_LINEARS is plain"
    monkeypatch.setenv(packed.VARIABLE, "fast")
    with pytest.raises(ValueError, match="'fast' is unknown: set plain"):
        packed.obstacle(CPU, torch.float32)
