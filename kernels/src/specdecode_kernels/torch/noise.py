"""Gumbel noise that is a function of (seed, position, token), the same for every draft and batch.

Source of the idea: Daliri, Musco, Suresh, "Coupling without communication and drafter-invariant
speculative decoding", 2024. The hash is a 32-bit integer finaliser applied per token id.
"""

import torch
from torch import Tensor

from specdecode_kernels.torch.by_row import update_by_row

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9


def _mix(value: Tensor) -> Tensor:
    """Scramble 32 bits held in int64: a bijection with full avalanche (constants: C. Wellons)."""
    value = value ^ (value >> 16)
    value = (value * 0x21F0AAAD) & _MASK
    value = value ^ (value >> 15)
    value = (value * 0x735A2D97) & _MASK
    return value ^ (value >> 15)


def gumbel_noise(seeds: Tensor, positions: Tensor, tokens: Tensor) -> Tensor:
    """Return standard Gumbel noise.

    Args:
        seeds: [rows] i64, any value; all 64 bits count.
        positions: [rows] i64, the absolute position of the token to be chosen.
        tokens: [vocab] i64, the token ids to make noise for.

    Returns:
        [rows, vocab] f32.
    """
    low = _mix((seeds & _MASK) ^ _mix((positions + 1) & _MASK))
    high = _mix(((seeds >> 32) & _MASK) ^ ((low * _GOLDEN) & _MASK))
    token_keys = _mix((tokens * _GOLDEN + 1) & _MASK)
    bits = _mix(_mix(token_keys[None, :] ^ low[:, None]) ^ high[:, None])
    # Small u gives large noise and keeps full float precision there, where the argmax is decided.
    uniform = (bits.to(torch.float32) + 0.5) * 2.0**-32
    exponential = -update_by_row(torch.log1p_, -uniform)
    return -update_by_row(torch.log_, exponential)
