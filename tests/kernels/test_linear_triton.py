"""The kernel of linear maps with quantized weights equals the reference; others go to torch."""

from dataclasses import replace

import pytest
import torch

from specdecode_kernels import NVFP4, TORCH, QuantizedTensor, RowSplit, quantize
from specdecode_kernels.triton.tiles import is_interpreted
from tests.kernels.launched import launches
from tests.kernels.quantized import FLOAT4, FORMS, draw_quantized
from tests.kernels.tensors import inside_wider, normal
from tests.kernels.triton_ops import TRITON

TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.05, torch.bfloat16: 0.3}
SHAPES = [(70, 96), (33, 45), (130, 130)]  # outputs, inputs


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("form", [*FORMS, *FLOAT4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_it_equals_the_reference(
    shape: tuple[int, int], form: str, dtype: torch.dtype, device: torch.device
) -> None:
    weight = draw_quantized(form, normal(*shape, dtype=dtype, device=torch.device("cpu")))
    weight = weight.on(device)
    bias = normal(shape[0], dtype=dtype, device=device)
    for rows in (1, 17):
        x = inside_wider(normal(rows, shape[1], dtype=dtype, device=device))
        with launches() as counts:
            got = TRITON.linear(x, weight, bias)
        assert counts == {"map_quantized": 1}
        wanted = TORCH.linear(x, weight, bias)
        assert got.dtype == dtype
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(got.float(), wanted.float(), atol=tolerance, rtol=0.02)


def test_an_order_of_inputs_only_moves_those_of_rows(device: torch.device) -> None:
    weight = draw_quantized("int4 with an order of inputs", torch.randn(33, 96)).on(device)
    x = torch.randn(5, 96, device=device)
    wanted = TRITON.linear(weight.ordered(x), replace(weight, order=None), None)
    assert torch.equal(TRITON.linear(x, weight, None), wanted)


@pytest.mark.usefixtures("row_independent_dot")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rows_are_mapped_by_their_paths_to_their_places(
    dtype: torch.dtype, device: torch.device
) -> None:
    """Two launches where rows of 16 bits take both; others, and other rows, take one."""
    weight = draw_quantized("int4", normal(33, 77, dtype=dtype, device=torch.device("cpu")))
    weight, x = weight.on(device), normal(90, 77, dtype=dtype, device=device)
    bias = normal(33, dtype=dtype, device=device)
    wanted, order = TRITON.linear(x, weight, bias), torch.randperm(90, device=device)
    assert TRITON.row_paths is not None
    for few in (0, 5, 40):
        with TRITON.row_paths.split(RowSplit(order[:few], order[few:])):
            with launches() as counts:
                got = TRITON.linear(x, weight, bias)
            assert counts == {"map_quantized": 2 if few and dtype.itemsize == 2 else 1}
            assert torch.equal(got, wanted)
            with launches() as counts:
                assert torch.equal(TRITON.linear(x[:70], weight, bias), wanted[:70])
            assert counts == {"map_quantized": 1}
    assert TRITON.row_paths.of(x) is None


def test_no_rows_launch_nothing(device: torch.device) -> None:
    weight = draw_quantized("int4", torch.randn(70, 64)).on(device)
    with launches() as counts:
        assert TRITON.linear(torch.zeros(0, 64, device=device), weight, None).shape == (0, 70)
    assert not counts


def test_plain_weights_go_to_torch(device: torch.device) -> None:
    x, weight = torch.randn(3, 8, device=device), torch.randn(5, 8, device=device)
    with launches() as counts:
        got = TRITON.linear(x, weight, None)
    assert not counts
    assert torch.equal(got, TORCH.linear(x, weight, None))


UNIT = {
    torch.float32: 0.0,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-7 if is_interpreted() else 2.0**-8,
}
"""What rounding an output adds to the bound; the interpreter cuts off to bfloat16."""


def draw_float4(form: str, outputs: int, inputs: int, dtype: torch.dtype) -> QuantizedTensor:
    """Draw an output of zeros, of minus zeros, of the largest codes; each other has an outlier in
    every block.
    """
    plain = normal(outputs, inputs, device=torch.device("cpu")) / 8
    plain[:, 5::16] *= 100
    plain[0], plain[1] = 0.0, -0.0
    weight = draw_quantized(form, plain.to(dtype))
    codes = weight.values.view(torch.uint8)
    codes[2], codes[3] = 0x77, 0xFF
    return weight


@pytest.mark.parametrize("dtype", UNIT, ids=str)
@pytest.mark.parametrize("form", FLOAT4)
@pytest.mark.parametrize("shape", [(70, 96), (33, 45), (130, 1000), (5, 16)], ids=str)
def test_float4_is_within_the_bound_of_the_formula(
    shape: tuple[int, int], form: str, dtype: torch.dtype, device: torch.device
) -> None:
    weight = draw_float4(form, *shape, dtype)
    wide = replace(weight, dtype=torch.float64).plain()
    assert torch.signbit(wide[1]).all()
    x = normal(19, shape[1], dtype=dtype, device=torch.device("cpu"))
    got = TRITON.linear(x.to(device), weight.on(device), None).cpu()
    sizes = x.double().abs() @ wide.abs().T
    error = (got.double() - x.double() @ wide.T).abs()
    assert (error <= (shape[1] * 2.0**-24 + UNIT[dtype]) * sizes).all()
    assert not got[:, :2].any()


POWERS = {
    torch.float32: range(253),
    torch.float16: range(110, 141),
    torch.bfloat16: range(2, 253),
}
"""Bytes of powers of two whose products with all codes are numbers of a type, of which the
interpreter takes no subnormal bfloat16."""


def scaled_codes(form: str, dtype: torch.dtype) -> QuantizedTensor:
    """Give each output every code, and another scale."""
    codes = torch.tensor([low | low + 1 << 4 for low in range(0, 16, 2)], dtype=torch.uint8)
    scales = torch.tensor([*(POWERS[dtype] if form == "mxfp4" else range(127))]).byte().view(-1, 1)
    outputs = len(scales)
    if form == "mxfp4":
        values = codes.repeat(outputs, 2).view(torch.float4_e2m1fn_x2)
        stored, shape = scales.view(torch.float8_e8m0fnu), torch.Size((outputs, 32))
        return QuantizedTensor(values, stored, shape, dtype, 32)
    values = codes.repeat(outputs, 1).view(torch.float4_e2m1fn_x2)
    stored, shape = scales.view(torch.float8_e4m3fn), torch.Size((outputs, 16))
    factors = torch.full((outputs,), 0.25)
    return QuantizedTensor(values, stored, shape, dtype, 16, factors=factors)


@pytest.mark.parametrize("dtype", POWERS, ids=str)
@pytest.mark.parametrize("form", FLOAT4)
def test_every_code_of_float4_times_every_scale_is_exact(
    form: str, dtype: torch.dtype, device: torch.device
) -> None:
    """Each row picks one input."""
    weight = scaled_codes(form, dtype)
    x = torch.eye(weight.shape[1], dtype=dtype, device=device)
    got = TRITON.linear(x, weight.on(device), None).cpu()
    assert torch.equal(got.float(), weight.plain().T)


@pytest.mark.usefixtures("row_independent_dot")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", FLOAT4)
def test_rows_of_float4_have_the_same_bits_in_any_batch(
    form: str, dtype: torch.dtype, device: torch.device
) -> None:
    weight = draw_quantized(form, normal(33, 77, dtype=dtype, device=torch.device("cpu")))
    weight, x = weight.on(device), normal(64, 77, dtype=dtype, device=device)
    whole = TRITON.linear(x, weight, None)
    for rows in range(1, 65):
        for first in {0, 64 - rows, (64 - rows) // 2}:
            part = x[first : first + rows]
            assert torch.equal(TRITON.linear(part, weight, None), whole[first : first + rows])


def test_scales_of_float4_in_float32_are_refused() -> None:
    weight = quantize(torch.randn(4, 32), NVFP4)
    wide = replace(weight, scales=weight.scales.float(), factors=None)
    with pytest.raises(ValueError, match=r"scales of a weight of float4 are torch\.float32"):
        TRITON.linear(torch.zeros(1, 32), wide, None)
