"""A row's tokens in the order of the filters: likelier first, among equals the lower index.

Values are compared by keys: the bits of a float32, arranged so that integers compare as the floats
do. A place in the order is a (key, token) pair.
"""

import triton
import triton.language as tl

NO_KEY = tl.constexpr(-(2**31))
"""Less than the key of every value, minus infinity included."""
DIGITS = tl.constexpr(2048)
"""Values of one digit of a key: it has three, of 11, 11 and 10 bits."""


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
    logits = tl.load(row_ptr + tokens, mask=tokens < vocab, other=-float("inf"))
    scaled = tl.div_rn(logits.to(tl.float32), temperature)
    scaled = tl.where(scaled == 0.0, 0.0, scaled)  # one key for both zeros
    return tl.where(scaled == scaled, scaled, -float("inf"))


@triton.jit
def keys_of(values, tokens, vocab):
    """Map f32 to i32, keeping the order; tokens past the end come after all others."""
    bits = values.to(tl.int32, bitcast=True)
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
    """Find the best of the tokens before one, the lowest among equals.

    Returns:
        Its noisy value, key and token, and 1 if any token is before it, else 0.
    """
    is_before = precedes(keys, tokens, key, token)
    best = tl.max(tl.where(is_before, noisy, -float("inf")))
    token = tl.min(tl.where(is_before & (noisy == best), tokens, 0x7FFFFFFF))
    key = tl.max(tl.where(tokens == token, keys, NO_KEY))
    return best, key, token, tl.max(precedes(keys, tokens, key, token).to(tl.int32))


@triton.jit
def count_digits(counts_ptr, keys, low, high, LEVEL: tl.constexpr):
    """Add the keys within [low, high] to counts [3, DIGITS] of their digits of this level."""
    if LEVEL == 0:
        digits = (keys >> 21) + DIGITS // 2
    elif LEVEL == 1:
        digits = (keys >> 10) & (DIGITS - 1)
    else:
        digits = keys & (DIGITS // 2 - 1)
    counts = tl.histogram(digits, DIGITS, mask=(keys >= low) & (keys <= high))
    counts_ptr += LEVEL * DIGITS + tl.arange(0, DIGITS)
    tl.atomic_add(counts_ptr, counts, mask=counts > 0, sem="relaxed")


@triton.jit
def kth_range(counts_ptr, wanted, LEVELS: tl.constexpr):
    """Find the k-th largest key by its first digits (radix select).

    Returns:
        The lowest and highest key with these digits, and which of them is wanted, from 1.
    """
    low = tl.zeros([], tl.int32)
    digits = tl.arange(0, DIGITS)
    for level in tl.static_range(LEVELS):
        counts = tl.load(counts_ptr + level * DIGITS + digits)
        not_below = tl.sum(counts) - tl.cumsum(counts, 0) + counts
        digit = tl.max(tl.where(not_below >= wanted, digits, 0))
        wanted -= tl.sum(tl.where(digits > digit, counts, 0))
        if level == 0:
            low += (digit - DIGITS // 2) << 21
            high = low + ((1 << 21) - 1)
        elif level == 1:
            low += digit << 10
            high = low + ((1 << 10) - 1)
        else:
            low += digit
            high = low
    return low, high, wanted
