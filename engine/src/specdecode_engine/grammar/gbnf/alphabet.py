"""Sets of characters as bits, for the characters that one grammar distinguishes."""

from bisect import bisect_left
from collections.abc import Iterable

from specdecode_engine.grammar.gbnf.syntax import MAX_CODE_POINT, Ranges

# The first byte of a character in UTF-8 is shared by characters of the same length only.
_UTF8_LENGTHS = ((0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, MAX_CODE_POINT))


class Alphabet:
    """One bit for each range of characters that no set of the grammar divides."""

    def __init__(self, sets: Iterable[Ranges]) -> None:
        ends = {end for ranges in sets for low, high in ranges for end in (low, high + 1)}
        utf8_ends = {end for low, high in _UTF8_LENGTHS for end in (low, high + 1)}
        self._starts = sorted({0} | ends | utf8_ends)
        self._bits: dict[Ranges, int] = {}
        self._lengths = [self.bits((each,)) for each in _UTF8_LENGTHS]

    def bits(self, ranges: Ranges) -> int:
        """Return the bits of a set."""
        if ranges not in self._bits:
            spans = (
                (bisect_left(self._starts, a), bisect_left(self._starts, b + 1)) for a, b in ranges
            )
            self._bits[ranges] = sum((1 << end) - (1 << start) for start, end in spans)
        return self._bits[ranges]

    def same_first_byte(self, bits: int) -> int:
        """Add every character whose first byte one of the set may have, or more."""
        for length in self._lengths:
            if bits & length:
                bits |= length
        return bits
