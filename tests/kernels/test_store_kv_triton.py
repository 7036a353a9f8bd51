"""The Triton store equals the reference to the bit, and writes nothing else."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specdecode_kernels import FLOAT8, TORCH, KvScale, LayerKV
from specdecode_kernels.testing import DEVICE, checked
from tests.kernels.launched import launches
from tests.kernels.triton_ops import TRITON

HALVES = (torch.float16, torch.bfloat16)
POOL_ROWS = 24


def small_integers(*shape: int, dtype: torch.dtype, is_strided: bool = False) -> Tensor:
    """Draw numbers that every type holds, so that no rounding is needed.

    The interpreter truncates to bfloat16, and its rounding to float8 is wrong for some numbers.
    """
    generator = torch.Generator().manual_seed(sum(shape))
    numbers = torch.randint(-8, 9, shape, generator=generator)
    if is_strided:
        numbers = numbers.repeat(1, 2, 1)[:, : shape[1]]
    return numbers.to(DEVICE, dtype)


def assert_equals_reference(
    rows: Tensor, k: Tensor, v: Tensor, pool_dtype: torch.dtype, scale: KvScale
) -> None:
    shapes = [(POOL_ROWS, *new.shape[1:]) for new in (k, v)] * 2
    pools = [torch.full(shape, 3.0, device=DEVICE).to(pool_dtype) for shape in shapes]
    TRITON.store_kv(LayerKV(pools[0], pools[1], scale), rows, k, v)
    checked(TORCH).store_kv(LayerKV(pools[2], pools[3], scale), rows, k, v)
    assert torch.equal(pools[0].float(), pools[2].float())
    assert torch.equal(pools[1].float(), pools[3].float())
    untouched = [row for row in range(POOL_ROWS) if row not in rows.tolist()]
    assert all(pool.float()[untouched].eq(3.0).all() for pool in pools)


@pytest.mark.parametrize("is_strided", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("pool_dtype", [torch.float32, *HALVES, FLOAT8], ids=str)
@pytest.mark.parametrize("heads_and_dim", [(1, 64), (3, 80), (8, 256)], ids=str)
def test_it_equals_the_reference(
    heads_and_dim: tuple[int, int], pool_dtype: torch.dtype, dtype: torch.dtype, is_strided: bool
) -> None:
    rows = torch.tensor([7, 0, 23], device=DEVICE)
    k = small_integers(3, *heads_and_dim, dtype=dtype, is_strided=is_strided)
    scale = KvScale(0.5, 0.25) if pool_dtype == FLOAT8 else KvScale()
    with launches() as counts:
        assert_equals_reference(rows, k, k.flip(0), pool_dtype, scale)
    assert counts == {"store_kv": 1}


@settings(derandomize=True, deadline=None, max_examples=20)
@given(
    st.lists(st.integers(0, POOL_ROWS - 1), unique=True, max_size=6),
    st.integers(1, 5),
    st.integers(1, 300),
    st.integers(1, 300),
)
def test_random_rows(rows: list[int], heads: int, dim: int, v_dim: int) -> None:
    k, v = (small_integers(len(rows), heads, one, dtype=torch.float32) for one in (dim, v_dim))
    ids = torch.tensor(rows, dtype=torch.int64, device=DEVICE)
    assert_equals_reference(ids, k, v + 1, torch.float32, KvScale())


def test_rows_that_are_columns_of_a_table() -> None:
    table = torch.tensor([[4, 9], [5, 9], [1, 9]], device=DEVICE)
    k = small_integers(3, 2, 16, dtype=torch.float32)
    assert_equals_reference(table[:, 0], k, k, torch.float32, KvScale())


def test_padding_may_write_the_dummy_page_more_than_once() -> None:
    rows = torch.tensor([0, 0, 5, 0], device=DEVICE)
    k = small_integers(4, 1, 16, dtype=torch.float32)
    pool = torch.zeros(POOL_ROWS, 1, 16, device=DEVICE)
    TRITON.store_kv(LayerKV(pool, pool.clone()), rows, k, k)
    assert torch.equal(pool[5], k[2])


def test_what_float8_cannot_hold_becomes_the_greatest() -> None:
    k = torch.tensor([1e6, -1e6, 449.0, 448.0], device=DEVICE).view(1, 1, 4)
    for backend in (TORCH, TRITON):
        pool = torch.zeros(POOL_ROWS, 1, 4, device=DEVICE).to(FLOAT8)
        backend.store_kv(LayerKV(pool, pool.clone()), torch.tensor([1], device=DEVICE), k, k)
        assert pool[1].flatten().tolist() == [448.0, -448.0, 448.0, 448.0]


def test_types_are_copied_with_nan() -> None:
    k = torch.tensor([torch.nan, 1.5], device=DEVICE, dtype=torch.bfloat16).view(1, 1, 2)
    pool = torch.zeros(POOL_ROWS, 1, 2, dtype=torch.bfloat16, device=DEVICE)
    TRITON.store_kv(LayerKV(pool, pool.clone()), torch.tensor([1], device=DEVICE), k, k)
    assert torch.equal(pool[1].view(torch.int16), k[0].view(torch.int16))


def test_offsets_beyond_31_bits() -> None:
    # Memory that nobody touches is not really taken.
    pool = torch.empty((1 << 31) // 64 + 2, 1, 64, dtype=FLOAT8, device=DEVICE)
    k = small_integers(1, 1, 64, dtype=torch.float32)
    last = pool.shape[0] - 1
    TRITON.store_kv(LayerKV(pool, pool), torch.tensor([last], device=DEVICE), k, k)
    assert torch.equal(pool[last].float(), k[0])
