"""Which of a row's candidates the filters keep first, in one more read of the row, or in three.

Top-k needs the number of tokens before a candidate, top-p the mass before it: both are summed for
all candidates in one read. Where top-k and top-p are both on, top-p means the mass of the k
likeliest tokens. So the k-th key is found too, exactly, a digit with each of four reads (radix
select); equal keys weigh the same, no order among them is needed.

Numbers and keys are exact. Masses are float32 sums over parts of a fixed size, in a fixed order: a
token whose mass before it is within rounding of top_p may fall on either side, as it may with
another order of summation, but always on the same.

A row whose candidates are all filtered out, though some were left out for want of room, is read
again once for each further candidate, by one program. Equal logits need this once in 10^20 rows;
only logits that are made from the noise can need it often.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.triton.candidates import (
    ARGUMENTS_OF_BATCH,
    Found,
    candidates_of_rows_kernel,
    filters_of,
)
from specdecode_kernels.triton.likelihood import (
    DIGITS,
    LEVELS,
    NO_KEY,
    count_digits,
    keys_of,
    kth_range,
    next_winner,
    of_request,
    precedes,
    row_of,
    scaled_row,
    value_of,
)
from specdecode_kernels.triton.noise import perturb

MOST = 64
"""Most candidates of a row, less one; of 256 thousand equal logits it has 13 on average."""
TILE = tl.constexpr(4)
"""Candidates that are measured at once; the mass of the whole part counts as one more."""


@triton.jit
def _peak(peaks_ptr, row, parts, PARTS: tl.constexpr):
    lanes = tl.arange(0, PARTS)
    return tl.max(tl.load(peaks_ptr + row * parts + lanes, lanes < parts, other=-float("inf")))


@triton.jit(do_not_specialize=ARGUMENTS_OF_BATCH)
def measure_kernel(
    logits,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    candidates,
    peaks_ptr,
    digits_ptr,
    ranks_ptr,  # [rows, parts, MOST] i32: tokens before each candidate, of all of them last
    masses_ptr,  # [rows, parts, MOST] f32: and their mass
    nodes,
    vocab,
    MOST: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    keys_ptr, tokens_ptr, counts_ptr = candidates
    count = tl.load(counts_ptr + row)
    if count == 0:
        return
    parts = tl.num_programs(1)
    temperature = of_request(temperature_ptr, row // nodes).to(tl.float32)
    here = tl.program_id(1) * PART + tl.arange(0, PART)
    values = scaled_row(row_of(logits, row, nodes), here, vocab, temperature)
    keys = keys_of(values, here, vocab)
    weights = tl.exp(values - _peak(peaks_ptr, row, parts, PARTS))
    at = (row * parts + tl.program_id(1)) * MOST
    for start in range(0, count + 1, TILE):
        place = start + tl.arange(0, TILE)
        is_candidate = place < count
        key = tl.load(keys_ptr + row * MOST + place, mask=is_candidate, other=NO_KEY)
        token = tl.load(tokens_ptr + row * MOST + place, mask=is_candidate, other=0x7FFFFFFF)
        is_before = precedes(keys[None, :], here[None, :], key[:, None], token[:, None])
        masses = tl.sum(tl.where(is_before, weights[None, :], 0.0), 1)
        tl.store(ranks_ptr + at + place, tl.sum(is_before.to(tl.int32), 1), mask=is_candidate)
        tl.store(masses_ptr + at + place, masses, mask=place <= count)
    if digits_ptr is not None:
        filters = (temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr)
        top_k, top_p, _min_p = filters_of(filters, row // nodes, vocab)
        if (top_k > 0) & (top_p < 1):
            digits_ptr += row * LEVELS * DIGITS
            low, high, _nth = kth_range(digits_ptr, top_k, 1)
            count_digits(digits_ptr, keys, low, high, 1)


@triton.jit(do_not_specialize=ARGUMENTS_OF_BATCH)
def measure_top_k_kernel(
    logits,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    counts_ptr,
    peaks_ptr,
    digits_ptr,
    above_ptr,  # [rows, parts] f32: mass of the keys whose first LEVEL digits are above the k-th's
    nodes,
    vocab,
    LEVEL: tl.constexpr,
    PART: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    filters = (temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr)
    top_k, top_p, _min_p = filters_of(filters, row // nodes, vocab)
    if (tl.load(counts_ptr + row) == 0) | (top_k == 0) | (top_p == 1):
        return
    parts = tl.num_programs(1)
    temperature = of_request(temperature_ptr, row // nodes).to(tl.float32)
    here = tl.program_id(1) * PART + tl.arange(0, PART)
    values = scaled_row(row_of(logits, row, nodes), here, vocab, temperature)
    keys = keys_of(values, here, vocab)
    weights = tl.exp(values - _peak(peaks_ptr, row, parts, PARTS))
    digits_ptr += row * LEVELS * DIGITS
    low, high, _nth = kth_range(digits_ptr, top_k, LEVEL)
    count_digits(digits_ptr, keys, low, high, LEVEL)
    tl.store(
        above_ptr + row * parts + tl.program_id(1), tl.sum(tl.where(keys > high, weights, 0.0))
    )


@triton.jit
def _top_k_mass(digits_ptr, top_k, peak):
    """Mass of the keys among the k likeliest that share all digits of the k-th but the last."""
    kth, _, of_equal = kth_range(digits_ptr, top_k, LEVELS)
    last = tl.arange(0, DIGITS)
    counts = tl.load(digits_ptr + (LEVELS - 1) * DIGITS + last)
    is_above = (last > (kth & (DIGITS - 1))) & (counts > 0)
    each = tl.where(is_above, tl.exp(value_of((kth & -DIGITS) + last) - peak), 0.0)
    return tl.sum(each * counts) + of_equal * tl.exp(value_of(kth) - peak)


@triton.jit
def _is_kept(rank, mass_before, key, limits):
    most, mass_limit, min_weight, peak = limits
    is_likely = tl.exp(value_of(key) - peak) >= min_weight
    return ((rank < most) & (mass_before < mass_limit) & is_likely) | (rank == 0)


@triton.jit
def _walk_on(row_ptr, temperature, noise, limits, key, token, vocab, BLOCK: tl.constexpr):
    """Measure candidates from (key, token) on, one read each, up to the first that is kept."""
    row, request, seeds, positions_ptr, ids_ptr = noise
    is_kept = tl.zeros([], tl.int32)
    while is_kept == 0:
        rank, before = tl.zeros([], tl.int32), tl.zeros([], tl.float32)
        best, next_token = tl.full([], NO_KEY, tl.int32), token
        for start in range(0, vocab, BLOCK):
            here = start + tl.arange(0, BLOCK)
            values = scaled_row(row_ptr, here, vocab, temperature)
            keys = keys_of(values, here, vocab)
            is_before = precedes(keys, here, key, token)
            rank += tl.sum(is_before.to(tl.int32))
            before += tl.sum(tl.where(is_before, tl.exp(values - limits[3]), 0.0))
            noisy = perturb(values, here, vocab, row, request, seeds, positions_ptr, ids_ptr)
            noisy = keys_of(noisy, here, vocab)
            found, index = next_winner(noisy, keys, here, key, token)
            next_token = tl.where(found > best, start + index, next_token)
            best = tl.maximum(best, found)
        is_kept = _is_kept(rank, before, key, limits).to(tl.int32)
        token = tl.where(is_kept > 0, token, next_token)
        key = keys_of(scaled_row(row_ptr, token, vocab, temperature), token, vocab)
    return token


@triton.jit(do_not_specialize=ARGUMENTS_OF_BATCH)
def keep_first_kernel(
    logits,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seeds_ptr,
    positions_ptr,
    ids_ptr,
    candidates,
    measured,  # peaks, digits, ranks, masses, masses above
    winners_ptr,
    nodes,
    parts,
    vocab,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    keys_ptr, tokens_ptr, counts_ptr = candidates
    peaks_ptr, digits_ptr, ranks_ptr, masses_ptr, above_ptr = measured
    count = tl.load(counts_ptr + row)
    if count == 0:
        return
    request = row // nodes
    filters = (temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr)
    top_k, top_p, min_p = filters_of(filters, request, vocab)
    peak = _peak(peaks_ptr, row, parts, PARTS)
    place, part = tl.arange(0, MOST), tl.arange(0, PARTS)
    at = (row * parts + part)[:, None] * MOST + place[None, :]
    is_part = (part < parts)[:, None]
    ranks = tl.load(ranks_ptr + at, mask=is_part & (place < count)[None, :], other=0)
    masses = tl.load(masses_ptr + at, mask=is_part & (place <= count)[None, :], other=0.0)
    ranks, masses = tl.sum(ranks, 0), tl.sum(masses, 0)
    mass = tl.sum(tl.where(place == count, masses, 0.0))
    if digits_ptr is not None:  # noqa: SIM102 -- this condition is the compiler's
        if (top_k > 0) & (top_p < 1):
            above = tl.load(above_ptr + row * parts + part, mask=part < parts, other=0.0)
            mass = tl.sum(above) + _top_k_mass(digits_ptr + row * LEVELS * DIGITS, top_k, peak)
    most = tl.where(top_k > 0, top_k, vocab)
    limits = (most, tl.where(top_p < 1, top_p * mass, float("inf")), min_p, peak)
    keys = tl.load(keys_ptr + row * MOST + place, mask=place < count, other=NO_KEY)
    is_kept = _is_kept(ranks, masses, keys, limits) & (place < count)
    first = tl.min(tl.where(is_kept, place, count))
    token = tl.load(tokens_ptr + row * MOST + tl.minimum(first, count - 1))
    if first == count:
        key = tl.load(keys_ptr + row * MOST + count - 1)
        temperature = of_request(temperature_ptr, request).to(tl.float32)
        noise = (row, request, seeds_ptr, positions_ptr, ids_ptr)
        row_ptr = row_of(logits, row, nodes)
        token = _walk_on(row_ptr, temperature, noise, limits, key, token, vocab, BLOCK)
    tl.store(winners_ptr + row, token.to(tl.int64))


def keep_first(
    logits: Tensor,
    sampling: tuple[Tensor, ...],  # temperature, top_k, top_p, min_p, seeds [B], contiguous
    positions: Tensor,
    ids: Tensor | None,
    found: Found,
    part: int,
    winners: Tensor,
) -> None:
    """Write the first candidate that the filters keep to winners [B, N] i64."""
    (rows, parts, part_most), nodes, vocab = found.noisy.shape, logits.shape[1], logits.shape[2]
    device, block = logits.device, triton.next_power_of_2(parts)
    keys, tokens = torch.empty((2, rows, MOST), dtype=torch.int32, device=device)
    counts = torch.empty(rows, dtype=torch.int32, device=device)
    ranks = torch.empty((rows, parts, MOST), dtype=torch.int32, device=device)
    masses = torch.empty((rows, parts, MOST), dtype=torch.float32, device=device)
    above = torch.empty((rows, parts), dtype=torch.float32, device=device)
    candidates = (keys, tokens, counts)
    strided = (logits, *logits.stride()[:2])
    candidates_of_rows_kernel[(rows,)](
        *sampling[:4], tuple(found[:4]), candidates, winners, nodes, parts, vocab,
        PART_MOST=part_most, MOST=MOST, BLOCK=block * part_most,
    )  # fmt: skip
    sizes = {"PART": part, "PARTS": block, "num_warps": 8}
    measure_kernel[(rows, parts)](
        strided, *sampling[:4], candidates, found.peaks, found.digits, ranks, masses, nodes, vocab,
        MOST=MOST, **sizes,
    )  # fmt: skip
    for level in range(2, LEVELS.value) if found.digits is not None else ():
        measure_top_k_kernel[(rows, parts)](
            strided, *sampling[:4], counts, found.peaks, found.digits, above, nodes, vocab,
            LEVEL=level, **sizes,
        )  # fmt: skip
    keep_first_kernel[(rows,)](
        strided, *sampling, positions, ids, candidates,
        (found.peaks, found.digits, ranks, masses, above),
        winners, nodes, parts, vocab, MOST=MOST, BLOCK=min(part, 1024), PARTS=block,
    )  # fmt: skip
