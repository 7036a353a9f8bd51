"""Where top-k, top-p and min-p end in a row of logits: found by bisection, without sorting it.

In the order of the filters (likelier first, among equals the lower token) what is kept is a prefix.
It is named by its last token: a key and an index. Keys are the logits' own bits, arranged so that
integers compare as the floats do; 16 quarterings of their range find the least likely value kept,
and one more pass how many of the equal ones. Top-k so comes out exactly. The others too, but for
the last bits of sums and exponentials: a token whose mass before it is within rounding of top_p may
fall on either side, as it may with another order of summation.
"""

import triton
import triton.language as tl

_LOWEST = tl.constexpr(-(2**31) + 0x7FFFFF)
"""The key of minus infinity."""


@triton.jit
def scaled_row(row_ptr, tokens, vocab, temperature):
    """Logits over temperature, f32; not-a-number is impossible, as is a token past the end."""
    logits = tl.load(row_ptr + tokens, mask=tokens < vocab, other=-float("inf"))
    scaled = tl.div_rn(logits.to(tl.float32), temperature)
    scaled = tl.where(scaled == 0.0, 0.0, scaled)  # one key for both zeros
    return tl.where(scaled == scaled, scaled, -float("inf"))


@triton.jit
def key_of(value):
    """Map f32 to i32, keeping the order."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value_of(key):
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _halfway(low, high):
    return (low & high) + ((low ^ high) >> 1)


@triton.jit
def _mass_above(
    row_ptr,
    temperature,
    peak,
    first,
    second,
    third,
    key,
    index,
    IS_MASS: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Number or mass of the tokens inside the border (key, index) above each of three other keys.
    lanes = tl.arange(0, BLOCK)
    above_first = tl.zeros([BLOCK], tl.float32)
    above_second = tl.zeros([BLOCK], tl.float32)
    above_third = tl.zeros([BLOCK], tl.float32)
    for start in range(0, VOCAB, BLOCK):
        tokens = start + lanes
        scaled = scaled_row(row_ptr, tokens, VOCAB, temperature)
        keys = key_of(scaled)
        inside = (keys > key) | ((keys == key) & (tokens <= index))
        weights = tl.exp(scaled - peak) if IS_MASS else tl.full([BLOCK], 1.0, tl.float32)
        weights = tl.where(inside & (tokens < VOCAB), weights, 0.0)
        above_first += tl.where(keys > first, weights, 0.0)
        above_second += tl.where(keys > second, weights, 0.0)
        above_third += tl.where(keys > third, weights, 0.0)
    return tl.sum(above_first), tl.sum(above_second), tl.sum(above_third)


@triton.jit
def _last_of(row_ptr, temperature, wanted, key, index, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    # The last of the first `wanted` tokens of this key, up to `index`; -1 if there is none.
    lanes = tl.arange(0, BLOCK)
    seen = tl.zeros([], tl.int32)
    last = tl.full([], -1, tl.int32)
    for start in range(0, VOCAB, BLOCK):
        tokens = start + lanes
        keys = key_of(scaled_row(row_ptr, tokens, VOCAB, temperature))
        equal = ((keys == key) & (tokens <= index) & (tokens < VOCAB)).to(tl.int32)
        kept = (equal > 0) & (seen + tl.cumsum(equal, 0) <= wanted)
        last = tl.maximum(last, tl.max(tl.where(kept, tokens, -1)))
        seen += tl.sum(equal)
    return last


@triton.jit
def _tighten(
    row_ptr,
    temperature,
    peak,
    share,
    key,
    index,
    IS_MASS: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # Keep tokens while those before them number less than `share`, or have less than this share
    # of the mass; the new (key, index).
    limit = share
    if IS_MASS:
        mass, _, _ = _mass_above(
            row_ptr, temperature, peak, _LOWEST, _LOWEST, _LOWEST, key, index, True, VOCAB, BLOCK
        )
        limit = share * mass
    low, high = key, key_of(peak)
    while low < high:
        second = _halfway(low, high)
        first, third = _halfway(low, second), _halfway(second, high)
        above_first, above_second, above_third = _mass_above(
            row_ptr, temperature, peak, first, second, third, key, index, IS_MASS, VOCAB, BLOCK
        )
        if above_second < limit:
            high = tl.where(above_first < limit, first, second)
            low = tl.where(above_first < limit, low, first + 1)
        else:
            high = tl.where(above_third < limit, third, high)
            low = tl.where(above_third < limit, second + 1, third + 1)
    before, _, _ = _mass_above(
        row_ptr, temperature, peak, low, low, low, key, index, IS_MASS, VOCAB, BLOCK
    )
    each = tl.full([], 1.0, tl.float32)
    if IS_MASS:
        each = tl.exp(_value_of(low) - peak)
    # Where each weighs next to nothing all are kept.
    room = tl.minimum((limit - before) / tl.maximum(each, 1e-30), VOCAB * 1.0)
    wanted = tl.ceil(room).to(tl.int32)
    bound = tl.where(low == key, index, VOCAB)
    return low, _last_of(row_ptr, temperature, wanted, low, bound, VOCAB, BLOCK)


@triton.jit
def _floor_key(peak, min_p, key):
    # The lowest key, from `key` on, that is likely enough compared with the likeliest.
    low, high = key, key_of(peak)
    while low < high:
        middle = _halfway(low, high)
        if tl.exp(_value_of(middle) - peak) < min_p:
            low = middle + 1
        else:
            high = middle
    return low


@triton.jit
def of_request(numbers, request):
    """One entry of a tensor [B], a pointer and a stride."""
    return tl.load(numbers[0] + request * numbers[1])


@triton.jit
def borders_kernel(
    logits,  # this and the next four: pointer and strides
    temperature,
    top_k,
    top_p,
    min_p,
    borders_ptr,
    nodes,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    request, node = row // nodes, row % nodes
    row_ptr = logits[0] + request * logits[1] + node * logits[2]
    temperature = of_request(temperature, request).to(tl.float32)
    top_k = of_request(top_k, request)
    top_p = of_request(top_p, request).to(tl.float32)
    min_p = of_request(min_p, request).to(tl.float32)
    key = tl.full([], _LOWEST, tl.int32)
    index = tl.full([], VOCAB, tl.int32)
    cuts = (top_k > 0) & (top_k < VOCAB)
    if (temperature > 0) & (cuts | (top_p < 1) | (min_p > 0)):
        best = tl.full([BLOCK], -float("inf"), tl.float32)
        for start in range(0, VOCAB, BLOCK):
            tokens = start + tl.arange(0, BLOCK)
            best = tl.maximum(best, scaled_row(row_ptr, tokens, VOCAB, temperature))
        peak = tl.max(best)
        if peak > -float("inf"):
            if cuts:
                count = top_k.to(tl.float32)
                key, index = _tighten(
                    row_ptr, temperature, peak, count, key, index, False, VOCAB, BLOCK
                )
            if top_p < 1:
                key, index = _tighten(
                    row_ptr, temperature, peak, top_p, key, index, True, VOCAB, BLOCK
                )
            if min_p > 0:
                floor = _floor_key(peak, min_p, key)
                index = tl.where(floor > key, VOCAB, index)
                key = floor
    tl.store(borders_ptr + row * 2, key)
    tl.store(borders_ptr + row * 2 + 1, index)
