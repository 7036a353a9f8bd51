"""Integers of a few bits in wider words, and numbers of four bits."""

from collections.abc import Sequence

import torch
from torch import Tensor

FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of E2M1, by its lower three bits; the fourth is the sign."""

E8M0_BIAS = 127
E8M0_NAN = 255


def unpack(words: Tensor, bits: int, order: Sequence[int] | None = None) -> Tensor:
    """Return the unsigned integers of `bits` bits in int32 words [.., n], as [.., n * 32 / bits].

    Args:
        order: which part of a word each integer is in; by default the lowest bits come first.
    """
    parts = torch.tensor(order or range(32 // bits), dtype=torch.int32, device=words.device)
    integers = words.unsqueeze(-1) >> (parts * bits) & ((1 << bits) - 1)
    return integers.flatten(-2)


def unpack_fp4(packed: Tensor) -> Tensor:
    """Return the E2M1 numbers in bytes [.., n] as f32 [.., 2 n]; lower bits come first.

    Source: OCP Microscaling Formats (MX) 1.0, section 5.3.3.
    """
    values = torch.tensor(FP4_VALUES, device=packed.device)
    values = torch.cat([values, -values])
    packed = packed.view(torch.uint8)
    halves = torch.stack([packed & 0xF, packed >> 4], dim=-1).flatten(-2)
    return values[halves.int()]


def exponent_scales(stored: Tensor) -> Tensor:
    """Return scales in f32; bytes are E8M0, which is 2^(byte - 127).

    Source: OCP Microscaling Formats (MX) 1.0, section 5.4.1.
    """
    if stored.dtype != torch.uint8:
        return stored.float()
    # A table: the exponential functions of torch need not be exact.
    powers = [2.0 ** (byte - E8M0_BIAS) for byte in range(E8M0_NAN)]
    return torch.tensor([*powers, torch.nan], device=stored.device)[stored.int()]
