"""The few tokens of each row that can be its sample, whatever the filters keep.

Filters keep a prefix of the tokens in the order of likelihood. If the row's winner is filtered out,
the next one in question is the winner among the tokens likelier than it, and so on: the row's
*candidates*. They are few, since the i-th likeliest token wins its prefix with probability
p_i / (p_1 + ... + p_i), independently of the others (the Gumbel-max trick): 1 + ln V on average at
most, 2 or 3 where the likeliest token has a large share. `filters` finds the first that is kept.
Source of the idea: rejection sampling without sorting, as in FlashInfer; but the noise is fixed, so
that a refused token never comes up again.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specdecode_kernels.triton.likelihood import (
    DIGITS,
    LEVELS,
    NO_KEY,
    count_digits,
    keys_of,
    next_winner,
    of_request,
    precedes,
    row_of,
    scaled_row,
    value_of,
)
from specdecode_kernels.triton.noise import perturb

ARGUMENTS_OF_BATCH = (
    *("temperature_ptr", "top_k_ptr", "top_p_ptr", "min_p_ptr", "seeds_ptr", "positions_ptr"),
    "nodes",
)
"""They differ from batch to batch: no kernel is compiled again for another alignment or number."""


class Found(NamedTuple):
    """What the first read of the rows leaves; without filters only the best of each part."""

    noisy: Tensor  # [rows, parts, most] i32: keys of the candidates' noisy values, descending
    tokens: Tensor  # [rows, parts, most] i32
    keys: Tensor | None = None  # [rows, parts, most] i32
    counts: Tensor | None = None  # [rows, parts] i32; most + 1 where there are more
    peaks: Tensor | None = None  # [rows, parts] f32: the highest of logits over temperature
    digits: Tensor | None = None  # [rows, LEVELS, DIGITS] i32: how many keys have each digit

    @classmethod
    def empty(
        cls, rows: int, parts: int, most: int, device: torch.device, *, has_digits: bool
    ) -> "Found":
        """Allocate it; more than one candidate of a part is for filters."""

        def ints(*shape: int) -> Tensor:
            return torch.empty(shape, dtype=torch.int32, device=device)

        noisy, tokens = ints(rows, parts, most), ints(rows, parts, most)
        if most == 1:
            return cls(noisy, tokens)
        peaks = torch.empty((rows, parts), dtype=torch.float32, device=device)
        digits = ints(rows, LEVELS.value, DIGITS.value).zero_() if has_digits else None
        return cls(noisy, tokens, ints(rows, parts, most), ints(rows, parts), peaks, digits)


@triton.jit
def filters_of(filters, request, vocab):
    """top_k, top_p and min_p of a request; 0, 1 and 0 where they are off.

    Args:
        filters: pointers to temperature, top_k, top_p and min_p of the requests.
    """
    is_sampled = of_request(filters[0], request) > 0
    top_k = of_request(filters[1], request)
    top_k = tl.where(is_sampled & (top_k < vocab), top_k, 0).to(tl.int32)
    top_p = tl.where(is_sampled, of_request(filters[2], request).to(tl.float32), 1.0)
    min_p = tl.where(is_sampled, of_request(filters[3], request).to(tl.float32), 0.0)
    return top_k, top_p, min_p


@triton.jit
def is_filtered(top_k, top_p, min_p):
    """Whether a filter is on."""
    return (top_k > 0) | (top_p < 1) | (min_p > 0)


@triton.jit(do_not_specialize=ARGUMENTS_OF_BATCH)
def candidates_of_parts_kernel(
    logits,  # pointer and strides of requests and nodes
    temperature_ptr,  # this and the next four: contiguous, of the requests; None: all are greedy
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    seeds_ptr,
    positions_ptr,
    ids_ptr,
    found,  # see `Found`
    nodes,
    vocab,
    IS_FILTERED: tl.constexpr,
    MOST: tl.constexpr,
    PART: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr, request = row_of(logits, row, nodes), row // nodes
    at = row * tl.num_programs(1) + tl.program_id(1)
    start = tl.program_id(1) * PART
    here = start + tl.arange(0, PART)
    temperature = tl.full([], 0.0, tl.float32)
    if temperature_ptr is not None:
        temperature = of_request(temperature_ptr, request).to(tl.float32)
    divisor = tl.where(temperature > 0, temperature, 1.0)
    values = scaled_row(row_ptr, here, vocab, divisor)
    noisy = values
    if temperature_ptr is not None:  # noqa: SIM102 -- this condition is the compiler's
        if temperature > 0:
            noisy = perturb(values, here, vocab, row, request, seeds_ptr, positions_ptr, ids_ptr)
    noisy_ptr, tokens_ptr, keys_ptr, counts_ptr, peaks_ptr, digits_ptr = found
    if IS_FILTERED:
        filters = (temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr)
        top_k, top_p, min_p = filters_of(filters, request, vocab)
        keys = keys_of(values, here, vocab)
        if digits_ptr is not None:  # noqa: SIM102
            if (top_k > 0) & (top_p < 1):
                count_digits(digits_ptr + row * LEVELS * DIGITS, keys, NO_KEY + 1, 0x7FFFFFFF, 0)
        likeliest_key, likeliest = tl.max(keys, 0, return_indices=True)
        tl.store(peaks_ptr + at, value_of(likeliest_key))
        noisy = keys_of(noisy, here, vocab)
        most = tl.where(is_filtered(top_k, top_p, min_p), MOST, 1)
        key, token = tl.full([], NO_KEY, tl.int32), tl.full([], 0, tl.int32) + vocab
        count, has_more = tl.zeros([], tl.int32), tl.full([], 1, tl.int32)
        while (count < most) & (has_more > 0):
            best, index = next_winner(noisy, keys, here, key, token)
            token = start + index
            key = keys_of(scaled_row(row_ptr, token, vocab, divisor), token, vocab)
            tl.store(noisy_ptr + at * MOST + count, best)
            tl.store(tokens_ptr + at * MOST + count, token)
            tl.store(keys_ptr + at * MOST + count, key)
            count += 1
            has_more = (index != likeliest).to(tl.int32)
        tl.store(counts_ptr + at, count + ((count == MOST) & (has_more > 0)).to(tl.int32))
    else:
        best, index = tl.max(noisy, 0, return_indices=True)
        token = start + index
        tl.store(noisy_ptr + at, keys_of(best, token, vocab))
        tl.store(tokens_ptr + at, token)


@triton.jit(do_not_specialize=ARGUMENTS_OF_BATCH)
def candidates_of_rows_kernel(
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    found,
    candidates,  # keys, tokens [rows, MOST]; counts [rows], 0 where the winner stays
    winners_ptr,
    nodes,
    parts,
    vocab,
    PART_MOST: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    filters = (temperature_ptr, top_k_ptr, top_p_ptr, min_p_ptr)
    top_k, top_p, min_p = filters_of(filters, row // nodes, vocab)
    noisy_ptr, tokens_ptr, found_keys_ptr, found_counts_ptr = found
    lanes = tl.arange(0, BLOCK)
    part, place = lanes // PART_MOST, lanes % PART_MOST
    found_count = tl.load(found_counts_ptr + row * parts + part, mask=part < parts, other=0)
    is_found = place < found_count
    at = row * parts * PART_MOST
    noisy = tl.load(noisy_ptr + at + lanes, mask=is_found, other=NO_KEY)
    tokens = tl.load(tokens_ptr + at + lanes, mask=is_found, other=0x7FFFFFFF)
    keys = tl.load(found_keys_ptr + at + lanes, mask=is_found, other=NO_KEY)
    likeliest_key = tl.max(keys)
    likeliest = tl.min(tl.where(keys == likeliest_key, tokens, 0x7FFFFFFF))
    # Beyond its last candidate that was found, nothing is known of a part that has more.
    is_end = (found_count > PART_MOST) & (place == PART_MOST - 1)
    end_key = tl.min(tl.where(is_end, keys, 0x7FFFFFFF))
    end = tl.max(tl.where(is_end & (keys == end_key), tokens, -1))

    keys_ptr, out_tokens_ptr, counts_ptr = candidates
    keys_ptr += row * MOST
    out_tokens_ptr += row * MOST
    key, token = tl.full([], NO_KEY, tl.int32), tl.full([], 0, tl.int32) + vocab
    count, has_more = tl.zeros([], tl.int32), tl.full([], 1, tl.int32)
    while (count < MOST - 1) & (has_more > 0):
        _, index = next_winner(noisy, keys, tokens, key, token)
        key, token = tl.load(found_keys_ptr + at + index), tl.load(tokens_ptr + at + index)
        tl.store(keys_ptr + count, key)
        tl.store(out_tokens_ptr + count, token)
        if count == 0:
            tl.store(winners_ptr + row, token.to(tl.int64))
        count += 1
        is_known = precedes(end_key, end, key, token)
        has_more = (is_known & (token != likeliest)).to(tl.int32)
    # No filter drops the likeliest.
    stays = (count == 1) & (token == likeliest) & precedes(end_key, end, key, token)
    stays |= is_filtered(top_k, top_p, min_p) == 0
    tl.store(counts_ptr + row, tl.where(stays, 0, count))
