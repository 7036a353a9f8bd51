"""Maps of weights of float4 in C: every code, both kinds of scales, the bound of errors."""

from itertools import product

import pytest
import torch
from torch import Tensor

from specdecode_kernels import MXFP4, NVFP4, PackedWeight, Precision, QuantizedTensor, quantize
from specdecode_kernels.testing import backend_of, checked
from specdecode_kernels.weights import FLOAT4_NUMBERS
from tests.kernels.quantized import FLOAT4

TYPES = (torch.float32, torch.bfloat16)
BACKENDS = {dtype: checked(backend_of("cpu", torch.device("cpu"), dtype)) for dtype in TYPES}
ROWS = (1, 2, 3, 7, 40)  # one tile, two groups by turns, widened
NUMBERS = torch.tensor([*FLOAT4_NUMBERS, *(-one for one in FLOAT4_NUMBERS)])
each_precision = pytest.mark.parametrize("precision", FLOAT4.values(), ids=FLOAT4)
each_dtype = pytest.mark.parametrize("dtype", TYPES, ids=str)


def draw(*shape: int) -> Tensor:
    """Normal values, the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def draw_bytes(*shape: int, most: int) -> Tensor:
    """Bytes from 0 to `most`, the same in every run."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randint(most + 1, shape, generator=generator, dtype=torch.uint8)


def weight_of(
    codes: Tensor,
    scales: Tensor,
    factors: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> QuantizedTensor:
    """A weight of codes [outputs, inputs] and bytes of scales [outputs, groups].

    It is NVFP4 with factors [outputs], else MXFP4.
    """
    values = (codes[:, ::2] | codes[:, 1::2] << 4).view(torch.float4_e2m1fn_x2)
    stored = torch.float8_e8m0fnu if factors is None else torch.float8_e4m3fn
    group = codes.shape[1] // scales.shape[1]
    return QuantizedTensor(values, scales.view(stored), codes.shape, dtype, group, factors=factors)


def pack(weight: QuantizedTensor) -> PackedWeight:
    """Pack by the backend of the type of the weight's rows."""
    pack_weight = BACKENDS[weight.dtype].pack_weight
    assert pack_weight is not None
    return pack_weight(weight)


def assert_within_bound(weight: QuantizedTensor, x: Tensor) -> None:
    """|y - y64| <= (inputs * 2^-24 + 2^-8 of bfloat16) * sum |x * w|, for each number of rows."""
    x = x.to(weight.dtype)
    packed, plain = pack(weight), weight.plain().double()
    rounding = 2.0**-8 if weight.dtype == torch.bfloat16 else 0.0
    most = (plain.shape[1] * 2.0**-24 + rounding) * (x.double().abs() @ plain.abs().T)
    for rows in ROWS:
        got = BACKENDS[weight.dtype].linear(x[:rows], packed, None).double()
        assert got.isfinite().all()
        error = (got - x[:rows].double() @ plain.T).abs()
        assert (error <= most[:rows]).all(), (rows, (error / most[:rows]).max())


@each_dtype
@each_precision
@pytest.mark.parametrize("shape", [(300, 96), (130, 1100), (65, 45), (7, 3)], ids=str)
def test_maps_of_float4_are_within_the_bound(
    shape: tuple[int, int], precision: Precision, dtype: torch.dtype
) -> None:
    weight = quantize(draw(*shape).to(dtype), precision)
    assert_within_bound(weight, draw(max(ROWS), shape[1]))


@each_dtype
@each_precision
def test_one_outlier_in_each_block_is_within_the_bound(
    precision: Precision, dtype: torch.dtype
) -> None:
    plain = draw(70, 320)
    plain[:, ::16] *= 1000.0
    plain[5:9, 16:] = 0.0
    assert_within_bound(quantize(plain.to(dtype), precision), draw(max(ROWS), 320))


@each_dtype
def test_every_byte_of_scales_and_codes_is_within_the_bound(dtype: torch.dtype) -> None:
    """MXFP4 with scales from 2^-127 to 2^113; NVFP4 with subnormal and zero scales."""
    codes = draw_bytes(70, 320, most=15)
    for bytes_of_scales in (draw_bytes(70, 10, most=1), draw_bytes(70, 10, most=240)):
        weight = weight_of(codes, bytes_of_scales, dtype=dtype)
        assert_within_bound(weight, draw(max(ROWS), 320))
    factors = draw(70).abs() * 2.0**-9
    for most in (7, 126):
        scales = draw_bytes(70, 20, most=most)
        assert_within_bound(weight_of(codes, scales, factors, dtype), draw(max(ROWS), 320))


@each_dtype
def test_mxfp4_is_exact_for_every_scale_and_code(dtype: torch.dtype) -> None:
    """Each input picks one code. Numbers have 2 significant bits, so none is rounded."""
    codes = torch.arange(16, dtype=torch.uint8).repeat(70, 2)
    for first in range(0, 254, 70):
        exponents = torch.arange(first, first + 70).clamp(max=254).to(torch.uint8)
        weight = weight_of(codes, exponents.unsqueeze(1), dtype=dtype)
        powers = torch.ldexp(torch.ones(70), exponents.int() - 127)
        wanted = NUMBERS.repeat(2).unsqueeze(1) * powers
        assert torch.equal(weight.plain().T, wanted)
        assert torch.equal(pack(weight).plain().T, wanted)
        for rows in (32, 1, 7):
            got = BACKENDS[dtype].linear(torch.eye(32, dtype=dtype)[:rows], pack(weight), None)
            assert torch.equal(got, wanted[:rows].to(dtype)), first


@each_dtype
def test_nvfp4_is_exact_for_every_scale_and_code(dtype: torch.dtype) -> None:
    """Each input picks one code; products of 2 and 4 significant bits are not rounded."""
    codes = torch.arange(16, dtype=torch.uint8).expand(126, 16).contiguous()
    scales = torch.arange(126, dtype=torch.uint8).unsqueeze(1)
    for factor in (1.0, 2.0**-40, 2.0**100):
        weight = weight_of(codes, scales, torch.full((126,), factor), dtype)
        wanted = NUMBERS.unsqueeze(1) * scales.view(torch.float8_e4m3fn).float().T * factor
        assert torch.equal(pack(weight).plain().T, wanted)
        for rows in (16, 1, 7):
            got = BACKENDS[dtype].linear(torch.eye(16, dtype=dtype)[:rows], pack(weight), None)
            assert torch.equal(got, wanted[:rows].to(dtype)), factor


def test_float4_in_c_adds_in_the_order_that_is_documented() -> None:
    """Products with doubled numbers by fused multiply-adds, group by group, then the factors."""
    x = draw(1, 300)
    for precision, shift in ((MXFP4, 2.0), (NVFP4, 256.0)):
        weight = quantize(draw(5, 300), precision)
        numbers, size = weight.numbers().double() * 2, weight.group
        wanted = torch.zeros(5)
        for number, first in enumerate(range(0, 300, size)):
            total = torch.zeros(5)
            for at in range(first, min(first + size, 300)):
                total = (numbers[:, at] * x[0, at].double() + total.double()).float()
            scales = weight.scales[:, number].double() / shift
            wanted = (scales * total.double() + wanted.double()).float()
        if weight.factors is not None:
            wanted *= weight.factors * 2.0**7
        assert torch.equal(BACKENDS[torch.float32].linear(x, pack(weight), None)[0], wanted)


@each_precision
def test_zeros_of_either_sign_add_nothing(precision: Precision) -> None:
    codes = draw_bytes(70, 64, most=1) << 3  # 0 and -0
    plain = quantize(draw(70, 64), precision)
    scales = plain.scales.view(torch.uint8)
    weight = weight_of(codes, scales, plain.factors)
    for rows in ROWS:
        assert not BACKENDS[torch.float32].linear(draw(rows, 64), pack(weight), None).any()


@each_precision
def test_blocks_take_the_bytes_of_the_checkpoint(precision: Precision) -> None:
    for shape in ((256, 1024), (4, 128, 160)):
        weight = quantize(draw(*shape), precision)
        factors = 0 if weight.factors is None else weight.factors.nbytes
        stored = weight.values.nbytes + weight.scales.nbytes + factors
        assert pack(weight).num_bytes == stored


@each_precision
def test_parts_of_a_wider_float4_weight_are_packed(precision: Precision) -> None:
    whole = quantize(draw(90, 128), precision)
    factors = None if whole.factors is None else whole.factors[10:80]
    part = QuantizedTensor(
        whole.values[10:80, :32],
        whole.scales[10:80, : 64 // precision.group],
        torch.Size((70, 64)),
        whole.dtype,
        precision.group,
        factors=factors,
    )
    assert torch.equal(pack(part).plain(), whole.plain()[10:80, :64])


def test_every_pair_of_codes_comes_back() -> None:
    codes = torch.tensor(list(product(range(16), repeat=2)), dtype=torch.uint8).flatten()
    weight = weight_of(codes.view(1, 512), torch.full((1, 16), 130, dtype=torch.uint8))
    assert torch.equal(pack(weight).plain(), 8 * NUMBERS[codes.int()].view(1, 512))
