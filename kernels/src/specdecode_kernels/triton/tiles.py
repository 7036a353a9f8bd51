"""How ops are cut into programs, from static shapes; types of products.

A pair is one query row of one query head. All pairs of a request that share a kv head lie side by
side, so that a tile of pairs loads keys and values once for every one of them. Tiles are the
largest that the compiler fits into registers without a stack, and into the 99 KiB of shared memory
of capabilities 8.6, 8.9 and 12.0 with two tiles of keys and of values in flight;
`kernels/compiled.tsv` lists what each of them takes, docs/gpu.md their times on an H100. There 32
pairs at 16-bit heads of 128 fill its processors with one wave of programs and a third of another.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction

MIN_DOT = 16
"""Fewest rows or columns that a tensor core multiplies."""
KEY_BYTES = 8192
MAX_PAIRS = 128
MAX_SPLITS = 32
PROGRAMS_PER_PROCESSOR = 2
ROWS_PER_SPLIT = 128


@dataclass(frozen=True, slots=True)
class Tile:
    """What one program holds, and how it is run."""

    pairs: int
    rows: int  # of keys and values at a time
    dim: int  # the head dimension, filled up to a power of two
    warps: int
    stages: int
    most_registers: int | None = None  # of a thread


def choose_tile(
    pairs: int, dim: int, itemsize: int, *, is_float8: bool = False, is_tree: bool = False
) -> Tile:
    """Fit `pairs` pairs of a request into one tile, or the widest that registers hold.

    One step loads 8 KiB of keys at 16-bit heads of 64, 128 and 256. `itemsize` is that of the
    queries, `is_float8` the cache's type. The rows of keys, and with them the order of a row's
    sums, depend on types and `dim` alone: decode and verify agree on it.
    """
    wide = power_of_two(dim)
    rows = min(64, max(MIN_DOT, KEY_BYTES // (wide * itemsize)))
    held = min(_most_pairs(wide, itemsize, is_float8, is_tree), power_of_two(pairs))
    if (held, wide, itemsize) == (32, 128, 2) and not is_float8:
        held = 64  # 0.82 of the time of 32 at 64 requests on an H100, 0.99 to 1.03 at 1 and 8
    # Four warps would spill; 32 pairs (16 in float32) at heads of 64 on 8.6 and 8.9 alone.
    is_tight = (is_tree or is_float8) and (held * itemsize, wide) == (64, 64)
    is_tight |= is_float8 and wide > 256
    is_large = held > 64 or held * wide > 64 * 128 or is_tight
    return Tile(held, rows, wide, warps=8 if is_large else 4, stages=3)


def _most_pairs(wide: int, itemsize: int, is_float8: bool, is_tree: bool) -> int:
    if itemsize > 2 or wide > 256:
        return 16
    if is_float8:
        return 32 if wide <= 128 else 16  # converted keys and values take registers too
    return 64 if is_tree or wide > 128 else MAX_PAIRS


def choose_splits(requests_and_heads: int, pairs: int, max_kv_len: int, processors: int) -> int:
    """Split the rows of keys and values until programs fill the processors.

    Every request takes the same number; on the device it is divided by what it really sees. The
    number does not depend on the tile, so up to `MAX_PAIRS` pairs decode and verify agree on it.
    """
    programs = requests_and_heads * -(-pairs // MAX_PAIRS)
    wanted = PROGRAMS_PER_PROCESSOR * processors // max(1, programs)
    useful = -(-max_kv_len // ROWS_PER_SPLIT)
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
