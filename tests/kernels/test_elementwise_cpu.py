"""The kernels in C equal the references in every width and stride, and keep a row's bits."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from specdecode_kernels import TORCH, Backend
from specdecode_kernels.testing import backend_of, checked
from tests.kernels.launched import launches
from tests.kernels.tensors import TOLERANCE, assert_near, inside_wider, normal

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
DIMS = [1, 10, 16, 64, 1023]
MOST_ROWS = 9
FLOAT32 = checked(backend_of("cpu", CPU))

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.fixture(autouse=True)
def counts() -> Iterator[Counter[str]]:
    with launches() as counted:
        yield counted


@pytest.fixture
def ops(dtype: torch.dtype) -> Backend:
    """The backend in C of a type."""
    return checked(backend_of("cpu", CPU, dtype))


def draw(*shape: int, seed: int = 0, dtype: torch.dtype) -> Tensor:
    return normal(*shape, seed=seed, dtype=dtype, device=CPU)


def assert_rows_alone_are_the_same(op: Callable[[Tensor], Tensor], x: Tensor) -> None:
    whole = op(x)
    for rows in range(len(x)):
        assert torch.equal(op(x[rows : rows + 1]), whole[rows : rows + 1])


@every_dtype
@pytest.mark.parametrize("dim", DIMS)
def test_rms_norm(dim: int, dtype: torch.dtype, ops: Backend, counts: Counter[str]) -> None:
    x, weight = draw(MOST_ROWS, dim, dtype=dtype), draw(dim, seed=1, dtype=dtype)
    wanted = TORCH.rms_norm(x, weight, 1e-5)
    for given in (x, inside_wider(x), x.t().contiguous().t()):
        assert_near(ops.rms_norm(given, weight, 1e-5), wanted)
    assert_near(ops.rms_norm(x.view(3, 3, dim), weight, 1e-5), wanted.view(3, 3, dim))
    assert set(counts) == {"rms_norm"}
    assert_rows_alone_are_the_same(lambda rows: ops.rms_norm(rows, weight, 1e-5), x)


@every_dtype
@pytest.mark.parametrize("dim", DIMS)
def test_add_rms_norm(dim: int, dtype: torch.dtype, ops: Backend, counts: Counter[str]) -> None:
    x, update = (draw(MOST_ROWS, dim, seed=seed, dtype=dtype) for seed in (0, 1))
    weight = draw(dim, seed=2, dtype=dtype)
    for left, right in ((x, update), (inside_wider(x), update), (x, inside_wider(update))):
        summed, normed = ops.add_rms_norm(left, right, weight, 1e-5)
        assert torch.equal(summed, x + update)
        assert_near(normed, TORCH.rms_norm(x + update, weight, 1e-5))
        assert torch.equal(normed, ops.rms_norm(summed, weight, 1e-5))
    assert set(counts) == {"add_rms_norm", "rms_norm"}


@pytest.mark.parametrize("dim", DIMS)
def test_norms_of_bfloat16_rows_by_a_float32_weight(dim: int, counts: Counter[str]) -> None:
    ops = checked(backend_of("cpu", CPU, torch.bfloat16))
    x = draw(MOST_ROWS, dim, dtype=torch.bfloat16)
    weight = 1 + draw(dim, seed=1, dtype=torch.float32) * 1e-2
    assert_near(ops.rms_norm(x, weight, 1e-5), TORCH.rms_norm(x, weight, 1e-5))
    _, normed = ops.add_rms_norm(x, x, weight, 1e-5)
    assert_near(normed, TORCH.rms_norm(x + x, weight, 1e-5))
    assert set(counts) == {"rms_norm", "add_rms_norm"}
    assert_rows_alone_are_the_same(lambda rows: ops.rms_norm(rows, weight, 1e-5), x)


@every_dtype
@pytest.mark.parametrize("dim", [2, 10, 64, 128])
def test_apply_rope(dim: int, dtype: torch.dtype, ops: Backend, counts: Counter[str]) -> None:
    heads = draw(MOST_ROWS, 3 + 2 + 2, dim, dtype=dtype)
    angles = normal(MOST_ROWS, dim // 2, seed=1, device=CPU)
    cos, sin = angles.cos(), angles.sin()
    q, k, v = heads.clone().split((3, 2, 2), dim=1)  # rows as they lie in the projection
    wanted = TORCH.apply_rope(q, k, cos, sin)
    alone = [
        ops.apply_rope(*(x[row : row + 1].clone() for x in (q, k, cos, sin))) for row in (0, 5)
    ]
    untouched = v.clone()
    turned = ops.apply_rope(q, k, cos, sin)
    for got, right in zip(turned, wanted, strict=True):
        assert_near(got, right)
    assert torch.equal(v, untouched)
    for row, (q_alone, k_alone) in zip((0, 5), alone, strict=True):
        assert torch.equal(turned[0][row], q_alone[0])
        assert torch.equal(turned[1][row], k_alone[0])
    assert set(counts) == {"apply_rope"}


@every_dtype
@pytest.mark.parametrize("dim", DIMS)
def test_silu_and_mul(dim: int, dtype: torch.dtype, ops: Backend, counts: Counter[str]) -> None:
    both = draw(MOST_ROWS, 2 * dim, dtype=dtype) * 4
    gate, up = both.chunk(2, dim=-1)
    wanted = TORCH.silu_and_mul(gate, up)
    assert_near_relatively(ops.silu_and_mul(gate, up), wanted)
    assert_near_relatively(ops.silu_and_mul(gate.contiguous(), inside_wider(up)), wanted)
    assert set(counts) == {"silu_and_mul"}
    assert_rows_alone_are_the_same(lambda rows: ops.silu_and_mul(*rows.chunk(2, dim=-1)), both)


@every_dtype
@pytest.mark.parametrize("dim", DIMS)
def test_gelu_tanh_and_mul(
    dim: int, dtype: torch.dtype, ops: Backend, counts: Counter[str]
) -> None:
    both = draw(MOST_ROWS, 2 * dim, dtype=dtype) * 4
    gate, up = both.chunk(2, dim=-1)
    wanted = TORCH.gelu_tanh_and_mul(gate, up)
    for given in ((gate, up), (gate.contiguous(), inside_wider(up))):
        got = ops.gelu_tanh_and_mul(*given)
        # torch's 1 + tanh loses the digits of a gate far below 0.
        torch.testing.assert_close(got, wanted, rtol=2 * TOLERANCE[dtype], atol=1e-5)
    assert set(counts) == {"gelu_tanh_and_mul"}
    assert_rows_alone_are_the_same(lambda rows: ops.gelu_tanh_and_mul(*rows.chunk(2, dim=-1)), both)


@every_dtype
@pytest.mark.parametrize("dim", DIMS)
def test_softcap(dim: int, dtype: torch.dtype, ops: Backend, counts: Counter[str]) -> None:
    """Logits are float32 whatever the type of the model."""
    x = draw(MOST_ROWS, dim, dtype=torch.float32) * 40
    for logits in (x, x.t().contiguous().t()):
        got = ops.softcap(logits, 30.0)
        torch.testing.assert_close(got, TORCH.softcap(x, 30.0), rtol=1e-6, atol=1e-6)
    assert set(counts) == {"softcap"}
    assert_rows_alone_are_the_same(lambda rows: ops.softcap(rows, 30.0), x)


def assert_near_relatively(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=2 * TOLERANCE[got.dtype], atol=1e-6)


def test_the_gate_of_every_finite_number_is_finite() -> None:
    extremes = torch.tensor([[-1e30, -200.0, -89.0, -87.5, -1e-30, 0.0, 1e-30, 87.5, 200.0, 1e30]])
    got = FLOAT32.silu_and_mul(extremes, torch.ones_like(extremes))
    torch.testing.assert_close(got, torch.nn.functional.silu(extremes), atol=1e-6, rtol=1e-6)
    got = FLOAT32.gelu_tanh_and_mul(extremes, torch.ones_like(extremes))
    torch.testing.assert_close(got, extremes.clamp(min=0), atol=1e-6, rtol=1e-6)


@every_dtype
def test_not_a_number_stays_one(dtype: torch.dtype, ops: Backend) -> None:
    x = draw(2, 20, dtype=dtype)
    x[1, 3] = torch.nan
    ones = torch.ones(20, dtype=dtype)
    results = (ops.rms_norm(x, ones, 1e-5), ops.silu_and_mul(x, x), ops.gelu_tanh_and_mul(x, x))
    for result in (*results, ops.softcap(x.float(), 30.0)):
        assert result[0].isfinite().all()
        assert result[1, 3].isnan()


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    """A sum with zero is rounded and nothing else: every float16 pattern of bits comes back."""
    bits = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)
    x = bits.view(torch.bfloat16)[None]
    finite = x[x.isfinite()][None]
    update = torch.full_like(finite, 2.0**-9)
    ops = backend_of("cpu", CPU, torch.bfloat16)
    summed, _ = ops.add_rms_norm(finite, update, torch.ones_like(finite[0]), 1e-5)
    assert torch.equal(summed, finite + update)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: backend_of("cpu", CPU).rms_norm(x, torch.ones(8).double(), 1e-5),
        lambda x: FLOAT32.apply_rope(x[:, None], x[:, None], *[torch.ones(2, 4).double()] * 2),
        lambda x: FLOAT32.silu_and_mul(x, x.bfloat16()),
        lambda x: FLOAT32.gelu_tanh_and_mul(x, x.bfloat16()),
        lambda x: FLOAT32.softcap(x.double(), 30.0),
    ],
    ids=["norm's weight", "angles", "silu", "gelu", "logits"],
)
def test_mixed_types_go_to_the_reference(
    call: Callable[[Tensor], object], counts: Counter[str]
) -> None:
    call(torch.ones(2, 8))
    assert not counts


def test_no_rows_are_legal() -> None:
    none = torch.empty(0, 8)
    assert FLOAT32.rms_norm(none, torch.ones(8), 1e-5).shape == (0, 8)
    assert FLOAT32.silu_and_mul(none, none).shape == (0, 8)
    assert FLOAT32.gelu_tanh_and_mul(none, none).shape == (0, 8)
    assert FLOAT32.softcap(none, 30.0).shape == (0, 8)
