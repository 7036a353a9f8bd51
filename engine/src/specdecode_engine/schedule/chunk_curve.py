"""Measured seconds that chunks of prompts add to a decode step, by their tokens.

A step is bound by reading weights up to some number of rows and by arithmetic above it, and kernels
compute rows in blocks: no line describes the first tokens. Only powers of two are measured.
"""

KEPT = 0.9
"""Weight of older chunks of a size at most, when one is measured."""


class ChunkCurve:
    """The means of chunks of 1, 2, 4, … tokens next to batches of one octave of sizes."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._counts: dict[int, int] = {}

    def observe(self, tokens: int, seconds: float) -> None:
        """Note what a chunk added; one of another size shows nothing."""
        if tokens.bit_count() != 1:
            return
        count = self._counts[tokens] = self._counts.get(tokens, 0) + 1
        kept = min(1.0 - 1.0 / count, KEPT)
        self._seconds[tokens] = kept * self._seconds.get(tokens, 0.0) + (1.0 - kept) * seconds

    def tokens_within(self, room_s: float) -> int:
        """Return the largest size measured that adds at most `room_s`; 0 if there is none."""
        return max((size for size, s in self._seconds.items() if s <= room_s), default=0)

    def is_measured(self, tokens: int) -> bool:
        return tokens in self._seconds

    def forget(self, tokens: int) -> None:
        """Drop what chunks of this size added: it may have been another process."""
        self._seconds.pop(tokens, None)
        self._counts.pop(tokens, None)

    def seconds(self, tokens: int) -> float | None:
        """Return what a chunk adds by the nearest sizes measured; None before any was."""
        larger = min((size for size in self._seconds if size >= tokens), default=0)
        smaller = max((size for size in self._seconds if size <= tokens), default=0)
        known = [self._seconds[larger]] if larger else []
        if smaller:
            known.append(self._seconds[smaller] * tokens / smaller)
        return min(known, default=None)
