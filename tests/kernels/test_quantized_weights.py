"""Maps of quantized weights: rounding, the C kernels and the reference."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels import (
    INT4,
    INT8,
    NVFP4,
    TORCH,
    ExpertWeights,
    GatedActivation,
    PackedWeight,
    Precision,
    QuantizedTensor,
    quantize,
)
from specdecode_kernels.testing import backend_of, checked
from specdecode_kernels.weights import FLOAT4_NUMBERS
from tests.kernels import mixtures
from tests.kernels.launched import launches
from tests.kernels.quantized import FLOAT4, FORMS, draw_quantized

CPU = torch.device("cpu")
TYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.15}
SHAPES = [(300, 96), (130, 1100), (65, 45), (7, 3)]  # outputs, inputs
MOST_ROWS = 260
FLOAT8_BY_OUTPUT = Precision("float8_e4m3fn")
BACKENDS = {dtype: checked(backend_of("cpu", CPU, dtype)) for dtype in TYPES}


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal values, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def pack(weight: QuantizedTensor) -> PackedWeight:
    """Pack by the backend of the type of the weight's rows."""
    pack_weight = BACKENDS[weight.dtype].pack_weight
    assert pack_weight is not None
    return pack_weight(weight)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("form", [*FORMS, *FLOAT4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_maps_in_c_equal_the_formula(shape: tuple[int, int], form: str, dtype: torch.dtype) -> None:
    weight, bias = draw_quantized(form, draw(*shape, dtype=dtype)), draw(shape[0], dtype=dtype)
    packed, plain = pack(weight), weight.plain().double()
    for rows in (0, 1, 5, 40):
        x = draw(rows, shape[1]).to(dtype)
        with launches() as counts:
            got = BACKENDS[dtype].linear(x, packed, bias)
        assert counts == {"linear": 1}
        assert got.dtype == dtype
        wanted = functional.linear(x.double(), plain, bias.double())
        torch.testing.assert_close(got.double(), wanted, atol=TOLERANCE[dtype], rtol=0.01)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("form", [*FORMS, *FLOAT4])
def test_rows_in_c_are_the_same_bits_however_many_there_are(form: str, dtype: torch.dtype) -> None:
    packed = pack(draw_quantized(form, draw(130, 700, dtype=dtype)))
    x = draw(MOST_ROWS, 700).to(dtype)
    whole = BACKENDS[dtype].linear(x, packed, None)
    for rows in (*range(1, 34), 65, 130, 250):
        assert torch.equal(BACKENDS[dtype].linear(x[:rows], packed, None), whole[:rows]), rows
        last = BACKENDS[dtype].linear(x[MOST_ROWS - rows :], packed, None)
        assert torch.equal(last, whole[MOST_ROWS - rows :]), rows


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_an_order_of_inputs_in_c_only_moves_those_of_rows(dtype: torch.dtype) -> None:
    """Bits are those of rows that have this order."""
    weight = draw_quantized("int4 with an order of inputs", draw(130, 700, dtype=dtype))
    assert weight.order is not None
    packed, ordered = pack(weight), pack(replace(weight, order=None))
    for rows in (1, 3, 7, 13, 64, 250):
        x = draw(rows, 700).to(dtype)
        wanted = BACKENDS[dtype].linear(x[:, weight.order], ordered, None)
        assert torch.equal(BACKENDS[dtype].linear(x, packed, None), wanted), rows


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", [*FORMS, *FLOAT4])
def test_the_reference_equals_the_formula_row_by_row(form: str, dtype: torch.dtype) -> None:
    weight, bias = draw_quantized(form, draw(70, 96, dtype=dtype)), draw(70, dtype=dtype)
    x = draw(9, 96).to(dtype)
    got = TORCH.linear(x, weight, bias)
    wanted = functional.linear(x.double(), weight.plain().double(), bias.double())
    tolerance = TOLERANCE.get(dtype, 1e-10)
    torch.testing.assert_close(got.double(), wanted, atol=tolerance, rtol=tolerance)
    for row in range(len(x)):
        assert torch.equal(TORCH.linear(x[row : row + 1], weight, bias)[0], got[row])


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("form", [*FORMS, *FLOAT4])
def test_experts_in_c_equal_the_reference(form: str, dtype: torch.dtype) -> None:
    plain, ops = mixtures.draw_weights(dtype), BACKENDS[dtype]
    assert isinstance(plain.gate_up, Tensor)
    assert isinstance(plain.down, Tensor)
    parts = draw_quantized(form, plain.gate_up), draw_quantized(form, plain.down)
    biases = plain.gate_up_bias, plain.down_bias
    packed = ExpertWeights(pack(parts[0]), pack(parts[1]), *biases)
    x, activation = draw(9, mixtures.WIDTH).to(dtype), GatedActivation("silu")
    routing = mixtures.draw_routing(9)
    got = ops.experts(x, routing, packed, activation)
    wanted = TORCH.experts(x, routing, ExpertWeights(*parts, *biases), activation)
    torch.testing.assert_close(got.float(), wanted.float(), atol=TOLERANCE[dtype], rtol=0.02)


@pytest.mark.parametrize("form", [*FORMS, *FLOAT4])
@pytest.mark.parametrize("shape", [*SHAPES, (3, 80, 70)], ids=str)
def test_the_numbers_come_back_from_blocks(shape: tuple[int, ...], form: str) -> None:
    weight = draw_quantized(form, draw(*shape))
    packed = pack(weight)
    assert torch.equal(packed.plain(), weight.plain())
    assert packed.precision == weight.precision
    if len(shape) == 2:
        for start, stop in ((0, 1), (3, 7), (shape[0] // 2, shape[0])):
            assert torch.equal(packed.rows(start, stop), weight.plain()[start:stop])
            assert torch.equal(weight.rows(start, stop), weight.plain()[start:stop])


@pytest.mark.parametrize("precision", [INT8, INT4, Precision("int4", 128)], ids=str)
@pytest.mark.parametrize("shape", [(40, 96), (5, 45), (3, 6, 64)], ids=str)
def test_weights_are_rounded_to_the_nearest_integers(
    precision: Precision, shape: tuple[int, ...]
) -> None:
    plain = draw(*shape)
    weight = quantize(plain, precision)
    assert weight.shape == plain.shape
    groups = torch.arange(shape[-1]) // weight.group
    steps = weight.scales.abs().index_select(-1, groups)
    error = (weight.plain() - plain).abs()
    # Half a step, but where a group's largest number is out of reach of the integers.
    assert ((error <= steps * 0.5001) | (plain.abs() > 7 * steps)).all()
    assert (error <= steps * 1.01).all()
    assert weight.plain().abs().max() <= plain.abs().max() * 1.01


@pytest.mark.parametrize("group", [0, 32, 128])
@pytest.mark.parametrize("shape", [(40, 96), (5, 45), (3, 6, 164)], ids=str)
def test_weights_are_rounded_to_the_nearest_float8(group: int, shape: tuple[int, ...]) -> None:
    plain = draw(*shape)
    weight = quantize(plain, Precision("float8_e4m3fn", group))
    assert weight.shape == plain.shape
    scales = weight.scales.index_select(-1, torch.arange(shape[-1]) // weight.group)
    error = (weight.plain() - plain).abs()
    # Half a unit in the last of three places of the mantissa, or half of a subnormal step.
    assert (error <= torch.maximum(plain.abs() * 2.0**-4, scales * 2.0**-10) * 1.001).all()
    assert torch.equal(weight.values.float().abs().amax(-1), torch.full(shape[:-1], 448.0))


@pytest.mark.parametrize("shape", [(40, 96), (5, 45), (3, 6, 164)], ids=str)
@pytest.mark.parametrize("precision", FLOAT4.values(), ids=FLOAT4)
def test_weights_are_rounded_to_the_nearest_float4(
    precision: Precision, shape: tuple[int, ...]
) -> None:
    plain = draw(*shape)
    plain[..., 0, :33] = 0.0
    weight = quantize(plain, precision)
    assert weight.precision == precision
    groups = torch.arange(shape[-1]) // precision.group
    scales = weight.wide_scales()[..., groups]
    numbers = torch.tensor([*FLOAT4_NUMBERS, *(-one for one in FLOAT4_NUMBERS)]) * scales[..., None]
    nearest = (numbers - plain[..., None]).abs().amin(-1)
    assert torch.equal((weight.plain() - plain).abs(), nearest)
    assert (weight.plain()[..., 0, :32] == 0).all()
    largest = torch.stack([one.abs().amax(-1) for one in plain.split(precision.group, -1)], -1)
    assert (largest <= 6.4 * weight.wide_scales()).all()  # a scale loses a 16th at most


def test_every_code_of_float4_has_its_number() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(1, 256)
    scales = torch.full((1, 16), 130, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    shape = torch.Size((1, 512))
    values = codes.view(torch.float4_e2m1fn_x2)
    weight = QuantizedTensor(values, scales, shape, torch.float32, 32)
    numbers = [sign * one for sign in (1, -1) for one in (0.0, 0.5, 1, 1.5, 2, 3, 4, 6)]
    wanted = [8.0 * numbers[half] for code in range(256) for half in (code & 15, code >> 4)]
    assert torch.equal(weight.plain(), torch.tensor([wanted]))
    assert torch.equal(torch.signbit(weight.plain()), torch.signbit(torch.tensor([wanted])))


def test_scales_of_float8_need_factors() -> None:
    weight = quantize(draw(4, 32), NVFP4)
    with pytest.raises(ValueError, match="each output has one if scales are in float8_e4m3fn"):
        replace(weight, factors=None)


def test_float8_in_c_is_exact_for_every_code() -> None:
    """Each input picks one code, times numbers of float32; NaN alone, which no weight is, differs.

    Outputs of a map whose scales are 1 are the numbers of float8, also in groups and in bfloat16.
    """
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    is_number = codes.float().isfinite()
    values = codes.where(is_number, torch.zeros_like(codes)).expand(70, 256).contiguous()
    for dtype, group in product(TYPES, (256, 32)):
        scales = torch.ones(70, 256 // group)
        packed = pack(QuantizedTensor(values, scales, torch.Size((70, 256)), dtype, group))
        for rows in (256, 1, 7):
            got = BACKENDS[dtype].linear(torch.eye(256, dtype=dtype)[:rows], packed, None)
            assert torch.equal(got.float(), values.float().T[:rows])
        broken = codes.expand(70, 256).contiguous()
        packed = pack(QuantizedTensor(broken, scales, torch.Size((70, 256)), dtype, group))
        BACKENDS[dtype].linear(torch.eye(256, dtype=dtype), packed, None)


def test_float8_in_c_adds_in_the_order_that_is_documented() -> None:
    """Products by fused multiply-adds of float32 in the order of inputs, group by group."""
    x = draw(1, 300)
    for group in (0, 128):
        weight = quantize(draw(5, 300), Precision("float8_e4m3fn", group))
        numbers, size = weight.numbers().double() / 256, weight.group
        wanted = torch.zeros(5)
        for number, first in enumerate(range(0, 300, size)):
            total = torch.zeros(5)
            for at in range(first, min(first + size, 300)):
                total = (numbers[:, at] * x[0, at].double() + total.double()).float()
            scales = (weight.scales[:, number] * 256).double()
            wanted = (scales * total.double() + wanted.double()).float()
        assert torch.equal(BACKENDS[torch.float32].linear(x, pack(weight), None)[0], wanted)


def test_equal_rows_are_rounded_equally_wherever_they_are() -> None:
    plain = draw(5000, 96)
    for precision in (INT8, INT4, FLOAT8_BY_OUTPUT):
        whole = quantize(plain, precision).plain()
        assert torch.equal(quantize(plain[4000:4003], precision).plain(), whole[4000:4003])


@pytest.mark.parametrize("precision", [INT8, INT4, FLOAT8_BY_OUTPUT], ids=str)
def test_zeros_stay_zeros(precision: Precision) -> None:
    assert not quantize(torch.zeros(3, 64), precision).plain().any()


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_weights_that_are_not_finite_are_refused(number: float) -> None:
    plain = draw(4, 64)
    plain[2, 3] = number
    with pytest.raises(ValueError, match=r"contains NaN or infinity"):
        quantize(plain, INT4)


def test_an_order_of_another_length_is_refused() -> None:
    weight = quantize(torch.randn(4, 32), INT4)
    message = r"the order of the inputs of a weight \[4, 32\] is \[31\]; it must have 32"
    with pytest.raises(ValueError, match=message):
        replace(weight, order=torch.arange(31).int())


def test_scales_of_another_shape_are_refused() -> None:
    weight = quantize(draw(4, 64), INT4)
    with pytest.raises(ValueError, match=r"values and scales of a weight \[4, 64\] in groups of"):
        QuantizedTensor(weight.values, weight.scales[:, :1], weight.shape, weight.dtype, 32)
    float8 = quantize(draw(4, 64), FLOAT8_BY_OUTPUT)
    zeros = torch.zeros(4, 1, dtype=torch.int8)
    with pytest.raises(ValueError, match="float8_e4m3fn must have no zero points"):
        QuantizedTensor(float8.values, float8.scales, float8.shape, float8.dtype, 64, zeros)
