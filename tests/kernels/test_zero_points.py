"""Maps of integers with zero points, in C and Triton: exact differences, the bound of errors where
both are much larger than the weights.
"""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specdecode_kernels import QuantizedTensor
from specdecode_kernels.testing import backend_of, checked
from specdecode_kernels.triton.tiles import is_interpreted
from specdecode_kernels.weights import pack_int4
from tests.kernels.tensors import normal
from tests.kernels.triton_ops import TRITON

CPU = torch.device("cpu")
TYPES = (torch.float32, torch.bfloat16)
BACKENDS = {dtype: checked(backend_of("cpu", CPU, dtype)) for dtype in TYPES}
GROUPS = (0, 32, 128)
SHAPES = [(70, 96), (130, 1100), (5, 45)]  # outputs, inputs
MOST_ROWS = 64
each_group = pytest.mark.parametrize("group", GROUPS)
each_dtype = pytest.mark.parametrize("dtype", TYPES, ids=str)


def draw_asymmetric(
    shape: tuple[int, int], group: int, dtype: torch.dtype, *, scales: Tensor | None = None
) -> QuantizedTensor:
    """Integers next to zero points of any size, with the farthest integer in each group: outputs 0
    and 1 have the largest differences of either sign, output 2 has zeros alone.
    """
    outputs, inputs = shape
    size = group or inputs
    generator = torch.Generator().manual_seed(outputs + group)
    zeros = torch.randint(-128, 128, (outputs, -(-inputs // size)), generator=generator)
    zeros[0], zeros[1] = -128, 127
    of_input = zeros.index_select(1, torch.arange(inputs) // size)
    near = torch.randint(-1, 2, shape, generator=generator)
    integers = (of_input + near).clamp(-128, 127)
    integers[:, ::size] = torch.where(of_input[:, ::size] > 0, -128, 127)
    integers[0, 1:], integers[1, 1:], integers[2] = 127, -128, of_input[2]
    if scales is None:
        scales = torch.rand(zeros.shape, generator=generator) + 0.1
    narrow = integers.to(torch.int8), zeros.to(torch.int8)
    return QuantizedTensor(narrow[0], scales, torch.Size(shape), dtype, size, narrow[1])


def draw_four_bits(shape: tuple[int, int], group: int, dtype: torch.dtype) -> QuantizedTensor:
    """Most integers differ from large zero points by one; output 2 has zeros alone."""
    outputs, inputs = shape
    generator = torch.Generator().manual_seed(outputs + group)
    counts = outputs, -(-inputs // group)
    zeros = torch.randint(-8, 8, counts, generator=generator)
    zeros[0], zeros[1] = -8, 7
    of_input = zeros.index_select(1, torch.arange(inputs) // group)
    integers = (of_input + torch.randint(-1, 2, shape, generator=generator)).clamp(-8, 7)
    integers[2] = of_input[2]
    scales = torch.rand(counts, generator=generator) + 0.1
    narrow = pack_int4(integers), zeros.to(torch.int8)
    return QuantizedTensor(narrow[0], scales, torch.Size(shape), dtype, group, narrow[1])


def assert_within_bound(got: Tensor, x: Tensor, weight: QuantizedTensor, unit: float) -> None:
    """|y - y64| <= (inputs * 2^-24 + unit) * sum |x * w|."""
    plain = replace(weight, dtype=torch.float64).plain()
    error = (got.double() - x.double() @ plain.T).abs()
    most = (x.shape[1] * 2.0**-24 + unit) * (x.double().abs() @ plain.abs().T)
    assert (error <= most).all()
    assert not got[:, 2].any()


@each_dtype
@pytest.mark.parametrize("group", GROUPS[1:])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maps_of_four_bits_are_within_the_bound(
    shape: tuple[int, int], group: int, dtype: torch.dtype
) -> None:
    """Of rows with a common sum, too, which large zero points multiply."""
    weight, ops = draw_four_bits(shape, group, dtype), BACKENDS[dtype]
    assert ops.pack_weight is not None
    packed = ops.pack_weight(weight)
    x = normal(40, shape[1], dtype=dtype, device=CPU) + 100.0
    whole = ops.linear(x, packed, None)
    assert_within_bound(whole, x, weight, 2.0**-8 if dtype == torch.bfloat16 else 0.0)
    for rows in (1, 2, 3, 7, 12):
        assert torch.equal(ops.linear(x[:rows], packed, None), whole[:rows]), rows


@each_dtype
@each_group
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maps_in_c_are_within_the_bound_and_keep_rows_apart(
    shape: tuple[int, int], group: int, dtype: torch.dtype
) -> None:
    weight, ops = draw_asymmetric(shape, group, dtype), BACKENDS[dtype]
    assert ops.pack_weight is not None
    packed, x = ops.pack_weight(weight), normal(MOST_ROWS, shape[1], dtype=dtype, device=CPU)
    assert packed.precision == weight.precision
    assert torch.equal(packed.plain(), weight.plain())
    whole = ops.linear(x, packed, None)
    assert_within_bound(whole, x, weight, 2.0**-8 if dtype == torch.bfloat16 else 0.0)
    for rows in range(1, MOST_ROWS):
        for first in range(0, MOST_ROWS - rows + 1, max(MOST_ROWS - rows, 1)):
            part = slice(first, first + rows)
            assert torch.equal(ops.linear(x[part], packed, None), whole[part]), part


@each_dtype
@each_group
def test_every_difference_in_c_is_exact(group: int, dtype: torch.dtype) -> None:
    """Each row picks one input; scales are powers of two."""
    shape, size = (256, 256), group or 256
    scales = torch.full((256, 256 // size), 0.25)
    zeros = torch.arange(-128, 128).view(-1, 1).expand(scales.shape).to(torch.int8).contiguous()
    integers = torch.arange(-128, 128).expand(shape).to(torch.int8).contiguous()
    weight = QuantizedTensor(integers, scales, torch.Size(shape), dtype, size, zeros)
    ops, x = BACKENDS[dtype], torch.eye(256, dtype=dtype)
    assert ops.pack_weight is not None
    assert torch.equal(ops.linear(x, ops.pack_weight(weight), None).float(), weight.plain().T)


UNIT = {
    torch.float32: 0.0,
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-6 if is_interpreted() else 2.0**-8,
}
"""What rounding an output adds to the bound, and a weight in a group; the interpreter cuts off to
bfloat16."""


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@each_group
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maps_in_triton_are_within_the_bound(
    shape: tuple[int, int], group: int, dtype: torch.dtype, device: torch.device
) -> None:
    weight = draw_asymmetric(shape, group, dtype)
    for rows in (3, 19):
        x = normal(rows, shape[1], dtype=dtype, device=CPU)
        got = TRITON.linear(x.to(device), weight.on(device), None).cpu()
        assert_within_bound(got, x, weight, UNIT[dtype])


@pytest.mark.usefixtures("row_independent_dot")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@each_group
def test_rows_in_triton_have_the_same_bits_in_any_batch(
    group: int, dtype: torch.dtype, device: torch.device
) -> None:
    weight = draw_asymmetric((33, 77), group, dtype).on(device)
    x = normal(MOST_ROWS, 77, dtype=dtype, device=device)
    whole = TRITON.linear(x, weight, None)
    for rows in range(1, MOST_ROWS):
        for first in {0, MOST_ROWS - rows, (MOST_ROWS - rows) // 2}:
            part = slice(first, first + rows)
            assert torch.equal(TRITON.linear(x[part], weight, None), whole[part]), part


def test_floats_have_no_zero_points() -> None:
    weight = draw_asymmetric((4, 32), 0, torch.float32)
    with pytest.raises(ValueError, match="float8_e4m3fn must have no zero points"):
        replace(weight, values=weight.values.to(torch.float8_e4m3fn))
