"""Each head of rows is mapped by a weight of its own, packed or plain, on any number of threads."""

import pytest
import torch
from torch import Tensor

from specdecode_kernels import AnyWeight, Backend
from specdecode_kernels.choice import Kernels
from specdecode_kernels.testing import backend_of, checked
from tests.kernels.launched import launches

CPU = torch.device("cpu")
SHAPES = [(1, 40, 16), (5, 65, 33), (20, 512, 192), (3, 7, 3)]  # heads, outputs, inputs


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal values, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def held(ops: Backend, weight: Tensor) -> AnyWeight:
    return weight if ops.pack_weight is None else ops.pack_weight(weight)


@pytest.mark.parametrize("rows", [0, 1, 3, 9, 300])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("torch", torch.float32), ("cpu", torch.float32), ("cpu", torch.bfloat16)],
    ids=str,
)
def test_heads_are_mapped_by_their_weights(
    name: Kernels, dtype: torch.dtype, shape: tuple[int, int, int], rows: int
) -> None:
    heads, outputs, inputs = shape
    ops = checked(backend_of(name, CPU, dtype))
    weight, wide = draw(*shape, dtype=dtype), draw(rows, heads, inputs + 8, dtype=dtype)
    x = wide[:, :, :inputs]  # as what is not rotated of queries
    with launches() as counts:
        got = ops.map_heads(x, held(ops, weight))
    assert counts == ({"map_heads": 1} if name == "cpu" else {})
    wanted = torch.einsum("rhi,hoi->rho", x.double(), weight.double())
    tolerance = 1e-4 if dtype == torch.float32 else 0.2
    assert (got.dtype, got.shape) == (dtype, (rows, heads, outputs))
    torch.testing.assert_close(got.double(), wanted, atol=tolerance, rtol=0.01)


def test_heads_that_lie_by_column_are_copied() -> None:
    ops = checked(backend_of("cpu", CPU))
    weight, x = draw(5, 65, 33), draw(4, 5, 33)
    by_column = x.transpose(1, 2).contiguous().transpose(1, 2)
    mapped = ops.map_heads(by_column, held(ops, weight))
    assert torch.equal(mapped, ops.map_heads(x, held(ops, weight)))


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    ops = backend_of("cpu", CPU)
    weight, x = held(ops, draw(6, 200, 120)), draw(11, 6, 120)
    before = torch.get_num_threads()
    try:
        results = []
        for count in (1, 3):
            torch.set_num_threads(count)
            results.append(ops.map_heads(x, weight))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


@pytest.mark.parametrize("shape", [(4, 2, 15), (4, 3, 16), (4, 32)])
def test_rows_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    ops = checked(backend_of("torch", CPU))
    with pytest.raises(ValueError, match=r"\[2, 40, 16\] must be \[heads, outputs, inputs\]"):
        ops.map_heads(draw(*shape), draw(2, 40, 16))


def test_rows_of_another_type_are_refused() -> None:
    ops = checked(backend_of("torch", CPU))
    with pytest.raises(ValueError, match=r"rows of torch\.float32 takes none of torch\.bf"):
        ops.map_heads(draw(4, 2, 16, dtype=torch.bfloat16), draw(2, 40, 16))
