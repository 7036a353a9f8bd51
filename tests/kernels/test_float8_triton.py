"""float8 by integer operations equals torch's conversions, to the bit."""

import pytest
import torch
import triton
import triton.language as tl

from specdecode_kernels import FLOAT8
from specdecode_kernels.triton.float8 import decode_float8, encode_float8

EVERY_BYTE = torch.arange(256, dtype=torch.uint8)


@triton.jit  # type: ignore[untyped-decorator]
def _decode_kernel(bits, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, decode_float8(tl.load(bits + at)).to(out.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def _encode_kernel(x, out, count: tl.constexpr):
    at = tl.arange(0, count)
    tl.store(out + at, encode_float8(tl.load(x + at)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_every_byte_is_decoded(dtype: torch.dtype, device: torch.device) -> None:
    bits = EVERY_BYTE.to(device)
    out = torch.empty(256, dtype=dtype, device=device)
    _decode_kernel[(1,)](bits, out, 256)
    wanted = bits.view(FLOAT8).to(dtype)
    assert torch.equal(out.isnan(), wanted.isnan())
    assert torch.equal(out.nan_to_num(), wanted.nan_to_num())
    assert torch.equal(out.signbit()[bits != 0xFF], wanted.signbit()[bits != 0xFF])


def encoded(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty(len(x), dtype=torch.uint8, device=x.device)
    _encode_kernel[(1,)](x, out, len(x))
    return out


def test_what_was_decoded_is_encoded_to_the_same_byte(device: torch.device) -> None:
    bits = EVERY_BYTE.to(device)
    assert torch.equal(encoded(bits.view(FLOAT8).float()), bits)


def test_numbers_between_two_values_round_as_torch_does(device: torch.device) -> None:
    values = EVERY_BYTE[:127].view(FLOAT8).double()
    middles = (values[1:] + values[:-1]) / 2
    around = torch.cat([middles, middles * (1 + 2**-20), middles * (1 - 2**-20), values])
    x = torch.cat([around, -around, torch.tensor([448.0, -448.0])]).float()
    x = torch.nn.functional.pad(x, (0, 1024 - len(x))).to(device)
    assert torch.equal(encoded(x), x.to(FLOAT8).view(torch.uint8))


def test_numbers_out_of_range_saturate(device: torch.device) -> None:
    x = torch.tensor([449.0, -1e9, torch.inf, -torch.inf], device=device)
    assert encoded(x).tolist() == [0x7E, 0xFE, 0x7E, 0xFE]
