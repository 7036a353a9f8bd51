"""Temperature, filters, noise and the likeliest token in one pass, rows cut into parts.

A part's best is one number and one index; a second, tiny launch takes the best of the parts. Rows
with a filter have their borders found before.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.metadata import SamplingParamsBatch
from specdecode_kernels.triton.borders import borders_kernel, key_of, of_request, scaled_row
from specdecode_kernels.triton.noise import gumbel_noise

BLOCK = 1024
BORDERS_BLOCK = 8192
PROGRAMS = 512
"""Programs that are enough to fill a device: fewer rows are cut into more parts."""


@triton.jit
def _perturb(
    values,
    here,
    ids_ptr,
    border_ptr,
    vocab,
    is_sampled,
    seed,
    position,
    IS_FILTERED: tl.constexpr,
    HAS_IDS: tl.constexpr,
):
    if is_sampled:
        ids = here
        if HAS_IDS:
            ids = tl.load(ids_ptr + here, mask=here < vocab, other=0).to(tl.int32)
        noisy = values + gumbel_noise(seed, position, ids)
        if IS_FILTERED:
            key, index = tl.load(border_ptr), tl.load(border_ptr + 1)
            keys = key_of(values)
            kept = (keys > key) | ((keys == key) & (here <= index))
            noisy = tl.where(kept, noisy, -float("inf"))
        values = noisy
    return values


@triton.jit
def best_of_parts_kernel(
    logits,  # pointer and strides; so are temperatures and seeds
    temperatures,
    seeds,
    positions_ptr,
    ids_ptr,
    borders_ptr,
    best_ptr,
    tokens_ptr,
    nodes,
    vocab,
    PART: tl.constexpr,
    IS_SAMPLED: tl.constexpr,
    IS_FILTERED: tl.constexpr,
    HAS_IDS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    request, node = row // nodes, row % nodes
    row_ptr = logits[0] + request * logits[1] + node * logits[2]
    temperature = tl.full([], 0.0, tl.float32)
    if IS_SAMPLED:
        temperature = of_request(temperatures, request).to(tl.float32)
        seed = of_request(seeds, request)
        position = tl.load(positions_ptr + row)
    is_sampled = temperature > 0
    divisor = tl.where(is_sampled, temperature, 1.0)
    first = part * PART
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    tokens = tl.zeros([BLOCK], tl.int32) + first
    for start in range(0, PART, BLOCK):
        here = first + start + tl.arange(0, BLOCK)
        values = scaled_row(row_ptr, here, vocab, divisor)
        if IS_SAMPLED:
            values = _perturb(
                values,
                here,
                ids_ptr,
                borders_ptr + row * 2,
                vocab,
                is_sampled,
                seed,
                position,
                IS_FILTERED,
                HAS_IDS,
            )
        better = values > best
        best = tl.where(better, values, best)
        tokens = tl.where(better, here, tokens)
    top = tl.max(best)
    at = row * tl.num_programs(1) + part
    tl.store(best_ptr + at, top)
    tl.store(tokens_ptr + at, tl.min(tl.where(best == top, tokens, vocab)))


@triton.jit
def best_part_kernel(best_ptr, tokens_ptr, out_ptr, parts, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    inside = lanes < parts
    best = tl.load(best_ptr + row * parts + lanes, mask=inside, other=-float("inf"))
    tokens = tl.load(tokens_ptr + row * parts + lanes, mask=inside, other=2**31 - 1)
    winner = tl.min(tl.where(best == tl.max(best), tokens, 2**31 - 1))
    tl.store(out_ptr + row, winner.to(tl.int64))


def sample(
    logits: Tensor, params: SamplingParamsBatch | None, positions: Tensor, ids: Tensor | None
) -> Tensor:
    logits = logits if logits.stride(2) == 1 else logits.contiguous()
    batch, nodes, vocab = logits.shape
    chosen = torch.empty((batch, nodes), dtype=torch.int64, device=logits.device)
    if not chosen.numel():
        return chosen
    part = _part_size(batch * nodes, vocab)
    parts = triton.cdiv(vocab, part)
    best = torch.empty((batch * nodes, parts), dtype=torch.float32, device=logits.device)
    tokens = torch.empty((batch * nodes, parts), dtype=torch.int32, device=logits.device)
    is_filtered = params is not None and params.is_filtered
    borders = find_borders(logits, params) if params is not None and is_filtered else chosen
    # What the kernel does not read may be anything.
    temperature, seeds = (chosen, chosen) if params is None else (params.temperature, params.seeds)
    best_of_parts_kernel[(batch * nodes, parts)](
        (logits, *logits.stride()[:2]),
        (temperature, temperature.stride(0)),
        (seeds, seeds.stride(0)),
        positions.contiguous(),
        tokens if ids is None else ids.contiguous(),
        borders,
        best,
        tokens,
        nodes,
        vocab,
        PART=part,
        IS_SAMPLED=params is not None,
        IS_FILTERED=is_filtered,
        HAS_IDS=ids is not None,
        BLOCK=BLOCK,
    )
    best_part_kernel[(batch * nodes,)](
        best, tokens, chosen, parts, BLOCK=triton.next_power_of_2(parts), num_warps=1
    )
    return chosen


def _part_size(rows: int, vocab: int) -> int:
    """Tokens in a part: a power of two, since each size is a compilation of its own."""
    parts = min(triton.cdiv(vocab, BLOCK), triton.cdiv(PROGRAMS, rows))
    return max(BLOCK, int(triton.next_power_of_2(triton.cdiv(vocab, parts))))


def find_borders(logits: Tensor, params: SamplingParamsBatch) -> Tensor:
    """Key and index of the last token that the filters keep, [B * N, 2] i32; see `borders`."""
    batch, nodes, vocab = logits.shape
    borders = torch.empty((batch * nodes, 2), dtype=torch.int32, device=logits.device)
    block = min(triton.next_power_of_2(vocab), BORDERS_BLOCK)
    borders_kernel[(batch * nodes,)](
        (logits, *logits.stride()[:2]),
        (params.temperature, params.temperature.stride(0)),
        (params.top_k, params.top_k.stride(0)),
        (params.top_p, params.top_p.stride(0)),
        (params.min_p, params.min_p.stride(0)),
        borders,
        nodes,
        VOCAB=vocab,
        BLOCK=block,
        num_warps=16,
    )
    return borders
