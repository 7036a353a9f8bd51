"""Norm, rotation, gate and store equal their formulas, in every type that weights come in."""

import math

import pytest
import torch
from torch import Tensor

from specdecode_kernels import Backend, LayerKV, choose_backend
from specdecode_kernels.testing import checked

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
SHAPES = [(1, 2), (3, 10), (7, 1023)]

every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def ops(dtype: torch.dtype) -> Backend:
    """The backend that a CPU gets for a type."""
    return checked(choose_backend("auto", torch.device("cpu"), dtype, 3).backend)


def normal(*shape: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def assert_near(result: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    assert result.dtype == dtype
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(result.double(), wanted, atol=tolerance, rtol=tolerance)


@every_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_rms_norm(shape: tuple[int, int], dtype: torch.dtype) -> None:
    x, weight = normal(*shape, dtype=dtype), normal(shape[1], dtype=dtype)
    wide = x.double()
    wanted = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_near(ops(dtype).rms_norm(x, weight, 1e-5), wanted, dtype)


def test_rms_norm_of_large_float16_does_not_overflow() -> None:
    x = torch.full((1, 8), 60_000.0, dtype=torch.float16)
    assert torch.equal(
        ops(torch.float16).rms_norm(x, torch.ones(8, dtype=torch.float16), 1e-5), torch.ones_like(x)
    )


@every_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_silu_and_mul(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate, up = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype).flip(0)
    wide = gate.double()
    assert_near(ops(dtype).silu_and_mul(gate, up), wide / (1 + (-wide).exp()) * up.double(), dtype)


@every_dtype
@pytest.mark.parametrize("shape", SHAPES)
def test_gelu_tanh_and_mul(shape: tuple[int, int], dtype: torch.dtype) -> None:
    gate, up = normal(*shape, dtype=dtype) * 3, normal(*shape, dtype=dtype).flip(0)
    wide = gate.double()
    curve = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)
    wanted = wide / 2 * (1 + curve.tanh()) * up.double()
    assert_near(ops(dtype).gelu_tanh_and_mul(gate, up), wanted, dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_softcap(dtype: torch.dtype) -> None:
    x = normal(3, 1023, dtype=dtype) * 40
    assert_near(ops(dtype).softcap(x, 30.0), 30 * (x.double() / 30).tanh(), dtype)


def test_a_norms_weight_may_be_wider_than_its_rows() -> None:
    """Of Gemma: 1 plus a weight of 16 bits needs more of them."""
    x, stored = normal(3, 70, dtype=torch.bfloat16), normal(70, dtype=torch.bfloat16) * 1e-2
    weight = 1 + stored.float()
    wide = x.double()
    scaled = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    normed = ops(torch.bfloat16).rms_norm(x, weight, 1e-5)
    assert_near(normed, scaled * weight.double(), torch.bfloat16)
    assert not torch.equal(normed, ops(torch.bfloat16).rms_norm(x, weight.bfloat16(), 1e-5))


@every_dtype
def test_rope_turns_pairs_of_halves(dtype: torch.dtype) -> None:
    angles = torch.tensor([[0.0, 0.0], [0.3, 2.0], [math.pi / 2, math.pi]])
    q, k = normal(3, 4, 4, dtype=dtype), normal(3, 2, 4, dtype=dtype)
    turned = ops(dtype).apply_rope(q.clone(), k.clone(), angles.cos(), angles.sin())
    for x, result in zip((q, k), turned, strict=True):
        pairs = torch.complex(x[..., :2].double(), x[..., 2:].double())
        spun = pairs * torch.polar(torch.ones(()).double(), angles.double())[:, None]
        tolerance = max(TOLERANCE[dtype], 1e-6)  # the angles are float32
        wanted = torch.cat((spun.real, spun.imag), dim=-1)
        assert result.dtype == dtype
        torch.testing.assert_close(result.double(), wanted, atol=tolerance, rtol=tolerance)


@every_dtype
def test_store_kv_writes_its_rows_and_no_other(dtype: torch.dtype) -> None:
    k_pool = torch.full((10, 2, 3), torch.nan, dtype=dtype)
    v_pool = k_pool.clone()
    rows = torch.tensor([7, 0, 4])
    k, v = normal(3, 2, 3, dtype=dtype), normal(3, 2, 3, dtype=dtype).flip(0)
    ops(dtype).store_kv(LayerKV(k_pool, v_pool), rows, k, v)
    assert torch.equal(k_pool[rows], k)
    assert torch.equal(v_pool[rows], v)
    untouched = [row for row in range(10) if row not in rows.tolist()]
    assert k_pool[untouched].isnan().all()
    assert v_pool[untouched].isnan().all()
