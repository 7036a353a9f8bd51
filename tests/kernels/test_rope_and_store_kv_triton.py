"""Rotation and store in one call equal the two ops, one after the other, to the bit."""

from functools import partial

import pytest
import torch
from torch import Tensor

from specdecode_kernels import FLOAT8, TORCH, KvScale, LayerKV
from specdecode_kernels.cpu import with_cpu_attention, with_cpu_ops
from specdecode_kernels.testing import DEVICE
from specdecode_kernels.triton.backend import with_triton_attention, with_triton_ops
from tests.kernels.launched import launches
from tests.kernels.tensors import assert_near
from tests.kernels.tensors import normal as normal_on
from tests.kernels.triton_ops import TRITON

CPU = torch.device("cpu")
POOL_ROWS = 24
normal = partial(normal_on, device=DEVICE)
HALVES = (torch.float16, torch.bfloat16)


def draw(
    rows: int, heads: tuple[int, int], dims: tuple[int, int], dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Draw q, k and v, as parts of one projection where their head sizes agree, and angles."""
    q_heads, kv_heads = heads
    dim, v_dim = dims
    angles = normal(rows, dim // 2, seed=1) * 3
    if dim != v_dim:
        q, k = normal(rows, q_heads + kv_heads, dim, dtype=dtype).split([q_heads, kv_heads], dim=1)
        return q, k, normal(rows, kv_heads, v_dim, dtype=dtype), angles.cos(), angles.sin()
    qkv = normal(rows, q_heads + 2 * kv_heads, dim, dtype=dtype)
    q, k, v = qkv.split([q_heads, kv_heads, kv_heads], dim=1)
    return q, k, v, angles.cos(), angles.sin()


def pools(
    dims: tuple[int, int], kv_heads: int, dtype: torch.dtype, device: torch.device = DEVICE
) -> LayerKV:
    k, v = (torch.full((POOL_ROWS, kv_heads, dim), 3.0, device=device).to(dtype) for dim in dims)
    return LayerKV(k, v, KvScale(0.5, 0.25) if dtype == FLOAT8 else KvScale())


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize("pool_dtype", [torch.float32, *HALVES, FLOAT8], ids=str)
@pytest.mark.parametrize(
    ("heads", "dims"),
    [((1, 1), (2, 2)), ((9, 1), (10, 10)), ((16, 9), (64, 64)), ((4, 2), (96, 64))],
    ids=str,
)
def test_it_equals_the_two_kernels(
    heads: tuple[int, int], dims: tuple[int, int], pool_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    slots = torch.tensor([[7, 0], [0, 0], [23, 0]], device=DEVICE)[:, 0]
    q, k, v, cos, sin = draw(3, heads, dims, dtype)
    wanted_q, wanted_k = TRITON.apply_rope(q.clone(), k.clone(), cos, sin)
    wanted = pools(dims, heads[1], pool_dtype)
    TRITON.store_kv(wanted, slots, wanted_k, v)
    stored = pools(dims, heads[1], pool_dtype)
    with launches() as counts:
        turned = TRITON.rope_and_store_kv(stored, slots, q, k, v, cos, sin)
    assert counts == {"rope_and_store_kv": 1}
    assert torch.equal(turned[0], wanted_q)
    assert torch.equal(turned[1], wanted_k)
    for pool, truth in ((stored.k, wanted.k), (stored.v, wanted.v)):
        assert torch.equal(pool.float(), truth.float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("pool_dtype", [torch.bfloat16, FLOAT8], ids=str)
@pytest.mark.parametrize("attention", ["torch", "other"])
@pytest.mark.parametrize("ops", ["torch", "cpu", "triton"])
def test_it_equals_the_two_ops_of_any_backend(
    ops: str, attention: str, pool_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    backend = TORCH
    if ops == "cpu":
        backend = with_cpu_ops(backend, dtype)
        backend = backend if attention == "torch" else with_cpu_attention(backend, dtype)
    elif ops == "triton":
        backend = with_triton_ops(backend)
    if attention == "other" and ops != "cpu":
        backend = with_triton_attention(backend, CPU, workspace_bytes=1 << 16)
    slots, drawn = torch.arange(16), [x.cpu() for x in draw(16, (8, 2), (64, 64), dtype)]
    q, k, v, cos, sin = drawn
    wanted_q, wanted_k = backend.apply_rope(q.clone(), k.clone(), cos, sin)
    wanted, stored = (pools((64, 64), 2, pool_dtype, CPU) for _ in range(2))
    backend.store_kv(wanted, slots, wanted_k, v)
    turned = backend.rope_and_store_kv(stored, slots, q, k, v, cos, sin)
    pairs = (*zip(turned, (wanted_q, wanted_k), strict=True), (stored.k, wanted.k))
    for result, truth in (*pairs, (stored.v, wanted.v)):
        assert torch.equal(result.float(), truth.float())


def test_it_is_near_the_reference() -> None:
    slots = torch.tensor([5, 6], device=DEVICE)
    q, k, v, cos, sin = draw(2, (4, 2), (16, 16), torch.float32)
    wanted = pools((16, 16), 2, torch.float32)
    truth = TORCH.rope_and_store_kv(wanted, slots, q.clone(), k.clone(), v, cos, sin)
    stored = pools((16, 16), 2, torch.float32)
    turned = TRITON.rope_and_store_kv(stored, slots, q, k, v, cos, sin)
    for result, expected in zip((*turned, stored.k), (*truth, wanted.k), strict=True):
        assert_near(result, expected)
    assert torch.equal(stored.v, wanted.v)


def test_no_rows_launch_nothing() -> None:
    q, k, v, cos, sin = draw(0, (4, 2), (16, 16), torch.float32)
    with launches() as counts:
        slots = torch.empty(0, dtype=torch.int64, device=DEVICE)
        TRITON.rope_and_store_kv(pools((16, 16), 2, torch.float32), slots, q, k, v, cos, sin)
    assert not counts
