"""How many threads treat a row."""


def warps_for(block: int) -> int:
    """Warps for a program that treats `block` elements at a time: eight or more a thread."""
    return min(max(block // 256, 1), 16)
