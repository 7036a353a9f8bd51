"""The hash of sampling noise, backwards: which token or seed has a given hash, by arithmetic."""

MASK = 0xFFFFFFFF
GOLDEN = 0x9E3779B9
LARGEST = MASK
"""The 128 largest hashes are nearer to 2^32 than to any smaller float32."""


def mix(value: int) -> int:
    """Scramble 32 bits as the noise does."""
    value ^= value >> 16
    value = value * 0x21F0AAAD & MASK
    value ^= value >> 15
    value = value * 0x735A2D97 & MASK
    return value ^ (value >> 15)


def unmix(value: int) -> int:
    """Invert `mix`."""
    value ^= (value >> 15) ^ (value >> 30)
    value = value * pow(0x735A2D97, -1, 1 << 32) & MASK
    value ^= (value >> 15) ^ (value >> 30)
    value = value * pow(0x21F0AAAD, -1, 1 << 32) & MASK
    return value ^ (value >> 16)


def token_of(bits: int, seed: int, position: int) -> int:
    """Return the token id below 2^32 whose hash is `bits` at a seed and position."""
    low = mix((seed & MASK) ^ mix(position + 1 & MASK))
    high = mix((seed >> 32 & MASK) ^ (low * GOLDEN & MASK))
    key = unmix(unmix(bits) ^ high) ^ low
    return (unmix(key) - 1) * pow(GOLDEN, -1, 1 << 32) & MASK


def seed_of(bits: int, token: int, position: int, lower: int = 1) -> int:
    """Return the signed 64-bit seed with which a token's hash at a position is `bits`.

    Args:
        lower: the lower 32 bits of the seed.
    """
    low = mix(lower ^ mix(position + 1 & MASK))
    key = mix(token * GOLDEN + 1 & MASK)
    high = unmix(bits) ^ mix(key ^ low)
    seed = (unmix(high) ^ (low * GOLDEN & MASK)) << 32 | lower
    return seed - (1 << 64) if seed >= 1 << 63 else seed
