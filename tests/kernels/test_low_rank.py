"""Low-rank maps of sorted rows: sums in one order, whatever rows and maps are next to them."""

import ctypes
import random
from collections.abc import Sequence
from itertools import count

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH, LowRankFactors, LowRankMaps
from specdecode_kernels.low_rank import PackedLowRank
from specdecode_kernels.testing import backend_of, checked
from tests.kernels.low_rank import draw_factors, maps_of, rows_of
from tests.kernels.mixtures import normal

CPU = torch.device("cpu")
TYPES = (torch.float32, torch.bfloat16)
BACKENDS = {dtype: checked(backend_of("cpu", CPU, dtype)) for dtype in TYPES}
OUTPUTS, INPUTS = 150, 77
RANKS = (1, 4, 16, 19, 64)
FMA = ctypes.CDLL("libm.so.6").fmaf
FMA.argtypes, FMA.restype = (ctypes.c_float,) * 3, ctypes.c_float


def sum_of(products: Sequence[tuple[float, float]]) -> float:
    """Add products in their order by fused multiply-adds of float32."""
    total = 0.0
    for one, other in products:
        total = FMA(one, other, total)
    return total


def exact_row(out: Tensor, x: Tensor, factors: LowRankFactors) -> Tensor:
    """Compute one row number by number: four sums of inputs for each rank, one of all ranks."""
    numbers, ranks = x.float().tolist(), list[float]()
    for row in factors.a.tolist():
        pairs = list(zip(row, numbers, strict=True))
        first, second, third, fourth = (sum_of(pairs[start::4]) for start in range(4))
        halves = torch.tensor([first, third]) + torch.tensor([second, fourth])
        ranks.append((halves[0] + halves[1]).item())
    added = [sum_of(list(zip(row, ranks, strict=True))) for row in factors.b.tolist()]
    return (out.float() + torch.tensor(added)).to(out.dtype)


def draw_maps(dtype: torch.dtype) -> tuple[LowRankMaps, list[LowRankFactors | None]]:
    """One map of each rank, and a slot without one."""
    numbers = count(step=2)
    factors: list[LowRankFactors | None] = [
        *[draw_factors(OUTPUTS, INPUTS, rank, next(numbers)) for rank in RANKS],
        None,
    ]
    return maps_of(BACKENDS[dtype], factors), factors


def draw_rows(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return normal(count, OUTPUTS, seed=90).to(dtype), normal(count, INPUTS, seed=91).to(dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_sums_are_those_of_their_order_to_the_bit(dtype: torch.dtype) -> None:
    maps, factors = draw_maps(dtype)
    slots = [0, 1, 2, 3, 4, 5, 6]
    out, x = draw_rows(len(slots), dtype)
    found = BACKENDS[dtype].add_low_rank(out.clone(), x, maps, rows_of(slots))
    for row, slot in enumerate(slots):
        one = factors[slot - 1] if slot else None
        wanted = out[row] if one is None else exact_row(out[row], x[row], one)
        assert torch.equal(found[row], wanted)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 33, 100])
def test_a_row_has_the_same_bits_in_every_batch(rows: int, dtype: torch.dtype) -> None:
    maps, _ = draw_maps(dtype)
    ops, rng = BACKENDS[dtype], random.Random(rows)
    out, x = draw_rows(rows, dtype)
    slots = [rng.randrange(len(RANKS) + 2) for _ in range(rows - 1)] + [3]
    found = ops.add_low_rank(out.clone(), x, maps, rows_of(slots))
    for row, slot in enumerate(slots):
        alone = out[row : row + 1].clone()
        if slot:
            ops.add_low_rank(alone, x[row : row + 1], maps, rows_of([slot]))
        assert torch.equal(found[row], alone[0])


@pytest.mark.parametrize("dtype", TYPES)
def test_bits_do_not_depend_on_threads(dtype: torch.dtype) -> None:
    factors = [draw_factors(1000, 500, 48, 1), draw_factors(1000, 500, 16, 3)]
    maps, ops = maps_of(BACKENDS[dtype], factors), BACKENDS[dtype]
    out, x = normal(70, 1000).to(dtype), normal(70, 500).to(dtype)
    rows, before = rows_of([row % 3 for row in range(70)]), torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(ops.add_low_rank(out.clone(), x, maps, rows))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("dtype", TYPES)
def test_it_computes_what_the_reference_does(dtype: torch.dtype) -> None:
    maps, factors = draw_maps(dtype)
    slots = [3, 0, 5, 3, 1, 6, 4, 2] * 3
    out, x = draw_rows(len(slots), dtype)
    found = BACKENDS[dtype].add_low_rank(out.clone(), x, maps, rows_of(slots))
    plain = checked(TORCH).add_low_rank(out.clone(), x, maps_of(TORCH, factors), rows_of(slots))
    tolerance = 1e-4 if dtype == torch.float32 else 0.01
    torch.testing.assert_close(found, plain, atol=tolerance * 80, rtol=tolerance)


def test_rows_of_x_may_be_parts_of_wider_rows() -> None:
    maps, _ = draw_maps(torch.float32)
    out, x = draw_rows(6, torch.float32)
    wide = torch.cat([normal(6, 5), x, normal(6, 9)], dim=1)[:, 5 : 5 + INPUTS]
    ops, rows = BACKENDS[torch.float32], rows_of([1, 2, 3, 4, 5, 5])
    wanted = ops.add_low_rank(out.clone(), x, maps, rows)
    assert torch.equal(ops.add_low_rank(out.clone(), wide, maps, rows), wanted)
    by_column = x.t().contiguous().t()
    assert torch.equal(ops.add_low_rank(out.clone(), by_column, maps, rows), wanted)


def test_joined_maps_store_no_zeros_of_one_another() -> None:
    b = torch.zeros(192, 30)
    b[:64, :10], b[64:, 10:] = 1.0, 2.0
    packed = PackedLowRank.of(LowRankFactors(normal(30, 8), b))
    assert packed.blocks.tolist() == [[0, 10, 0], [10, 20, 10], [10, 20, 30]]
    assert packed.b.shape == (50, 64)


def test_a_replaced_map_is_used_from_then_on() -> None:
    ops = BACKENDS[torch.float32]
    factors = [draw_factors(OUTPUTS, INPUTS, 4, seed) for seed in (0, 2)]
    (first, second), (out, x) = (
        (maps_of(ops, [one]) for one in factors),
        draw_rows(3, torch.float32),
    )
    rows = rows_of([1, 1, 0])
    wanted = ops.add_low_rank(out.clone(), x, second, rows)
    first.put(1, second.by_slot[1])
    assert torch.equal(ops.add_low_rank(out.clone(), x, first, rows), wanted)
    first.put(1, None)
    assert torch.equal(ops.add_low_rank(out.clone(), x, first, rows), out)
