"""Integers of a few bits in wider words, and floats of four and six bits."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from specdecode_kernels.weights import float4_numbers

E8M0_BIAS = 127
E8M0_NAN = 255


def unpack(words: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """Return the unsigned integers of `bits` bits in int32 words [.., n], as [.., n * 32 / bits].

    Args:
        order: which part of a word each integer is in, if none is in two words; by default the
            words are one stream of bits, lowest bits first.
    """
    if order is None and 32 % bits:
        return _unpack_stream(words, bits)
    parts = torch.tensor(order or range(32 // bits), dtype=torch.int32, device=words.device)
    integers = words.unsqueeze(-1) >> (parts * bits) & ((1 << bits) - 1)
    return integers.flatten(-2)


def _unpack_stream(words: Tensor, bits: int) -> Tensor:
    """As `unpack`, for integers that may begin in one word and end in the next."""
    starts = torch.arange(words.shape[-1] * 32 // bits, device=words.device) * bits
    unsigned = functional.pad(words.long() & 0xFFFFFFFF, (0, 1))
    pairs = unsigned[..., starts // 32] | unsigned[..., starts // 32 + 1] << 32
    return (pairs >> starts % 32 & ((1 << bits) - 1)).int()


def unpack_fp4(packed: Tensor) -> Tensor:
    """Return the E2M1 numbers in bytes [.., n] as f32 [.., 2 n]; lower bits come first."""
    packed = packed.view(torch.uint8)
    return float4_numbers(torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2))


def unpack_fp6(packed: Tensor) -> Tensor:
    """Return the E2M3 numbers in bytes [.., 3 n] as f32 [.., 4 n]; lower bits come first.

    Source: OCP Microscaling Formats (MX) 1.0, section 5.3.2.
    """
    low = [eighths / 8 for eighths in range(8)]
    values = torch.tensor([*low, *((1 + one) * 2**power for power in range(3) for one in low)])
    values = torch.cat([values, -values]).to(packed.device)
    first, second, third = packed.view(torch.uint8).int().view(*packed.shape[:-1], -1, 3).unbind(-1)
    word = first | second << 8 | third << 16
    codes = torch.stack([word >> start & 0x3F for start in range(0, 24, 6)], dim=-1)
    return values[codes.flatten(-2)]


def exponent_scales(stored: Tensor) -> Tensor:
    """Return scales in f32; bytes are E8M0, which is 2^(byte - 127).

    Source: OCP Microscaling Formats (MX) 1.0, section 5.4.1.
    """
    if stored.dtype != torch.uint8:
        return stored.float()
    # A table: the exponential functions of torch need not be exact.
    powers = [2.0 ** (byte - E8M0_BIAS) for byte in range(E8M0_NAN)]
    return torch.tensor([*powers, torch.nan], device=stored.device)[stored.int()]
