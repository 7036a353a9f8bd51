"""How ops are cut into programs, from static shapes, none of it measured yet; types of products.

A pair is one query row of one query head. All pairs of a request that share a kv head lie side by
side, so that a tile of pairs loads keys and values once for every one of them.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

MIN_DOT = 16
"""Fewest rows or columns that a tensor core multiplies."""
MAX_SPLITS = 32
PROGRAMS_PER_PROCESSOR = 2
BLOCKS_PER_SPLIT = 2


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program holds, and how it is run."""

    pairs: int
    rows: int  # of keys and values at a time
    dim: int  # the head dimension, filled up to a power of two
    warps: int
    stages: int


def choose_tile(pairs: int, dim: int, itemsize: int) -> Tile:
    """Fit `pairs` pairs of a request into one tile, or the widest that registers hold.

    Keys and values of one step take 16 KiB each at most, twice or three times in shared memory.
    """
    wide = power_of_two(dim)
    most = 128 if wide <= 128 else 64
    held = min(most, power_of_two(pairs))
    rows = min(64, max(MIN_DOT, 16384 // (wide * itemsize)))
    is_large = held * wide > (64 * 128 if itemsize <= 2 else 16 * 128)  # four warps would spill
    return Tile(held, rows, wide, warps=8 if is_large else 4, stages=2 if itemsize > 2 else 3)


def choose_splits(programs: int, max_kv_len: int, block_rows: int, processors: int) -> int:
    """Split the rows of keys and values until `programs` times splits fill the processors.

    Every request takes the same number; on the device it is divided by what it really sees.
    """
    wanted = PROGRAMS_PER_PROCESSOR * processors // max(1, programs)
    useful = -(-max_kv_len // (BLOCKS_PER_SPLIT * block_rows))
    return max(1, min(wanted, useful, MAX_SPLITS))


def power_of_two(size: int) -> int:
    """Round up to a power of two that a dot product takes."""
    return max(MIN_DOT, 1 << (size - 1).bit_length())


def warps_for(block: int) -> int:
    """Warps for a program that treats `block` elements at a time: eight or more a thread."""
    return min(max(block // 256, 1), 16)


DOT_TYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


@triton.jit
def _probe():
    pass


def is_interpreted() -> bool:
    """Whether TRITON_INTERPRET was set when kernels were defined: they then run on CPU."""
    return isinstance(_probe, InterpretedFunction)


def dot_type(dtype: torch.dtype) -> tl.dtype:
    """Answer the type of a product's factors: that of the queries.

    The interpreter keeps bfloat16 as bits, which numpy would multiply as integers: float32 there.
    """
    if is_interpreted() and dtype == torch.bfloat16:
        return tl.float32
    return DOT_TYPES[dtype]
