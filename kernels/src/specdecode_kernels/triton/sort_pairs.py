"""Sorts pairs of a row and an expert by expert, in blocks of one expert each, on the device.

Shapes follow from the number of rows: there is room for the most blocks that any routing needs, and
how many there are is known on the device alone, so the host waits for nothing and a CUDA graph can
hold the launch.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 1024


class PairBlocks(NamedTuple):
    """Blocks of pairs, each of one expert. Pair p is place p % top_k of row p // top_k.

    The experts' last blocks are filled up with the number of pairs, one more than the last of them.
    """

    pairs: Tensor  # [blocks, rows of a block] i32
    experts: Tensor  # [blocks] i32
    used: Tensor  # [1] i32, how many blocks; those after them hold anything


@triton.jit(do_not_specialize=("pairs",))
def _sort_pairs_kernel(
    ids_ptr,
    pairs_ptr,
    experts_ptr,
    used_ptr,
    pairs,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,  # filled up to a power of two
    CHUNK: tl.constexpr,
):
    # One program per expert. All count all experts: cheaper than a launch that counts before.
    expert = tl.program_id(0)
    numbers = tl.arange(0, EXPERTS)
    counts = tl.zeros([EXPERTS], tl.int32)
    for start in range(0, pairs, CHUNK):
        pair = start + tl.arange(0, CHUNK)
        ids = tl.load(ids_ptr + pair, mask=pair < pairs, other=0)
        counts += tl.histogram(ids, EXPERTS, mask=pair < pairs)
    blocks = (counts + ROWS - 1) // ROWS
    first = tl.sum(tl.where(numbers < expert, blocks, 0))
    if expert == 0:
        tl.store(used_ptr, tl.sum(blocks))

    place = first * ROWS
    for start in range(0, pairs, CHUNK):
        pair = start + tl.arange(0, CHUNK)
        is_own = tl.load(ids_ptr + pair, mask=pair < pairs, other=-1) == expert
        ordinal = tl.cumsum(is_own.to(tl.int32), 0)
        places = place + ordinal - 1
        tl.store(pairs_ptr + places, pair, mask=is_own)
        tl.store(experts_ptr + places // ROWS, expert, mask=is_own & (places % ROWS == 0))
        place += tl.max(ordinal)
    filling = place + tl.arange(0, ROWS)
    end = (first + tl.sum(tl.where(numbers == expert, blocks, 0))) * ROWS
    tl.store(pairs_ptr + filling, tl.full([ROWS], pairs, tl.int32), mask=filling < end)


def sort_pairs(ids: Tensor, num_experts: int, rows: int) -> PairBlocks:
    """Sort ids [rows, top_k] i32, contiguous, into blocks of `rows` pairs."""
    pairs = ids.numel()
    most = most_blocks(pairs, num_experts, rows)
    sorted_pairs, experts, used = (
        torch.empty(shape, dtype=torch.int32, device=ids.device)
        for shape in ((most, rows), most, 1)
    )
    _sort_pairs_kernel[(num_experts,)](
        ids,
        sorted_pairs,
        experts,
        used,
        pairs,
        ROWS=rows,
        EXPERTS=triton.next_power_of_2(num_experts),
        CHUNK=CHUNK,
    )
    return PairBlocks(sorted_pairs, experts, used)


def most_blocks(pairs: int, num_experts: int, rows: int) -> int:
    """Return the most blocks that any routing fills: a pair each, until all experts have one."""
    busy = min(pairs, num_experts)
    return busy + (pairs - busy) // rows
