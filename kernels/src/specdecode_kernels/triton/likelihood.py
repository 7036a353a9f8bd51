"""A row's tokens in the order of the filters: likelier first, among equals the lower index.

Values are compared by keys: the bits of a float32, arranged so that integers compare as the floats
do. A place in the order is a (key, token) pair.
"""

import triton
import triton.language as tl

NO_KEY = tl.constexpr(-(2**31))
"""Less than the key of every value, minus infinity included."""
DIGITS = tl.constexpr(256)
"""Values of one digit of a key. A thread counts DIGITS / 32 of them in registers of its own."""
LEVELS = tl.constexpr(4)
"""Digits of a key, from its highest bits on."""


@triton.jit
def row_of(logits, row, nodes):
    """Pointer to one row of logits [B, N, vocab]: a pointer and two strides."""
    return logits[0] + row // nodes * logits[1] + row % nodes * logits[2]


@triton.jit
def of_request(numbers, request):
    """One entry of a tensor [B], contiguous."""
    return tl.load(numbers + request)


@triton.jit
def scaled_row(row_ptr, tokens, vocab, temperature):
    """Logits over temperature, f32; not-a-number is impossible, as is a token past the end."""
    scaled = tl.load(row_ptr + tokens, mask=tokens < vocab, other=-float("inf")).to(tl.float32)
    if temperature != 1:
        scaled = tl.div_rn(scaled, temperature)
    return tl.where(scaled == scaled, scaled, -float("inf"))


@triton.jit
def keys_of(values, tokens, vocab):
    """Map f32 to i32, keeping the order; tokens past the end come after all others."""
    bits = tl.where(values == 0.0, 0.0, values).to(tl.int32, bitcast=True)  # both zeros are equal
    return tl.where(tokens < vocab, bits ^ ((bits >> 31) & 0x7FFFFFFF), NO_KEY)


@triton.jit
def value_of(key):
    """The value of a key of `keys_of`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def precedes(keys, tokens, key, token):
    """Whether tokens are likelier than one; all of them are before (NO_KEY, vocab)."""
    return (keys > key) | ((keys == key) & (tokens < token))


@triton.jit
def next_winner(noisy, keys, tokens, key, token):
    """Find the best of the tokens before one: the key of its noisy value, and its index.

    Args:
        noisy: keys of noisy values. Of equal ones the first wins, so they are in order of tokens.
    """
    noisy = tl.where(precedes(keys, tokens, key, token), noisy, NO_KEY)
    return tl.max(noisy, 0, return_indices=True)


@triton.jit
def count_digits(counts_ptr, keys, low, high, LEVEL: tl.constexpr):
    """Add the keys within [low, high] to counts [LEVELS, DIGITS] of their digits of this level."""
    digits = ((keys ^ NO_KEY) >> (24 - 8 * LEVEL)) & (DIGITS - 1)
    counts = tl.histogram(digits, DIGITS, mask=(keys >= low) & (keys <= high))
    counts_ptr += LEVEL * DIGITS + tl.arange(0, DIGITS)
    tl.atomic_add(counts_ptr, counts, mask=counts > 0, sem="relaxed")


@triton.jit
def kth_range(counts_ptr, wanted, KNOWN: tl.constexpr):
    """Find the k-th largest key by its first KNOWN digits (radix select).

    Returns:
        The lowest and highest key with these digits, and which of them is wanted, from 1.
    """
    low = tl.full([], NO_KEY, tl.int32)
    digits = tl.arange(0, DIGITS)
    for level in tl.static_range(KNOWN):
        counts = tl.load(counts_ptr + level * DIGITS + digits)
        not_below = tl.sum(counts) - tl.cumsum(counts, 0) + counts
        digit = tl.max(tl.where(not_below >= wanted, digits, 0))
        wanted -= tl.sum(tl.where(digits > digit, counts, 0))
        low ^= digit << (24 - 8 * level)
    return low, low | (2 ** (32 - 8 * KNOWN) - 1), wanted
