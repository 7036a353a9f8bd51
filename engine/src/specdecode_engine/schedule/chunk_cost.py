"""Measured seconds that chunks of prompts add to a decode step, by their tokens.

A line gives the size of a chunk that adds a given time from few chunks of any sizes, after contexts
of about one length: the time of attention grows with both. It misses the first tokens: a step is
bound by reading weights up to some number of rows, by arithmetic above it, and kernels compute rows
in blocks. Where a step has a limit, a curve of measured sizes decides.
"""

KEPT = 0.95
"""Weight in a line of what was measured before, when a chunk is measured."""
KEPT_OF_SIZE = 0.9
"""Weight in a curve of older chunks of a size at most, when one is measured."""
KEPT_BEGINNING = 0.2
"""Weight of another length's chunks in the line of a length of context, when it begins."""
MIN_SPREAD = 0.05
"""Standard deviation of the sizes of chunks, relative to their mean, that shows a slope."""


class ChunkLine:
    """Fixed seconds and seconds per token, by least squares; older chunks count less."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._squares = 0.0
        self._seconds = self._products = 0.0
        self._slope: float | None = None

    def beginning(self) -> "ChunkLine":
        """Return a line for another length of context, which soon forgets this one."""
        line = ChunkLine()
        line._slope = self._slope
        for name in ("_weight", "_tokens", "_squares", "_seconds", "_products"):
            setattr(line, name, KEPT_BEGINNING * getattr(self, name))
        return line

    def observe(self, tokens: int, seconds: float) -> None:
        self._weight = KEPT * self._weight + 1
        self._tokens = KEPT * self._tokens + tokens
        self._squares = KEPT * self._squares + tokens * tokens
        self._seconds = KEPT * self._seconds + seconds
        self._products = KEPT * self._products + tokens * seconds
        mean = self._tokens / self._weight
        variance = self._squares / self._weight - mean * mean
        if variance > (MIN_SPREAD * mean) ** 2:  # else the slope stays as it is
            covariance = self._products / self._weight - mean * self._seconds / self._weight
            self._slope = covariance / variance

    def most_tokens(self, limit_s: float, at_most: int) -> int:
        """Return the tokens of the largest chunk within the limit, or of one two thirds fixed."""
        fixed_s, slope = self._parts()
        seconds_left = max(limit_s, 1.5 * fixed_s) - fixed_s
        return at_most if seconds_left >= slope * at_most else int(seconds_left / slope)

    def _parts(self) -> tuple[float, float]:
        """Return the fixed seconds of a chunk, and the seconds of a token; neither is negative."""
        mean, seconds = self._tokens / self._weight, self._seconds / self._weight
        proportional = seconds / mean
        slope = proportional if self._slope is None else min(max(self._slope, 0.0), proportional)
        return seconds - slope * mean, slope


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
        kept = min(1.0 - 1.0 / count, KEPT_OF_SIZE)
        self._seconds[tokens] = kept * self._seconds.get(tokens, 0.0) + (1.0 - kept) * seconds

    def tokens_within(self, room_s: float, most: int) -> int:
        """Return the largest size measured that adds at most `room_s`; 0 if there is none.

        It is `most` instead, where that is less, or less than twice the size and adds at most
        `room_s` in proportion.
        """
        fitting = max((size for size, s in self._seconds.items() if s <= room_s), default=0)
        if most >= 2 * fitting:
            return fitting
        fits = most <= fitting or self._seconds[fitting] * most <= room_s * fitting
        return most if fits else fitting

    def is_measured(self, tokens: int) -> bool:
        return tokens in self._seconds

    def forget(self, tokens: int) -> None:
        """Drop what chunks of this size added: it may have been another process."""
        self._seconds.pop(tokens, None)
        self._counts.pop(tokens, None)

    def seconds(self, tokens: int) -> float:
        """Return what a chunk adds by the nearest sizes measured; 0 before any was."""
        larger = min((size for size in self._seconds if size >= tokens), default=0)
        smaller = max((size for size in self._seconds if size <= tokens), default=0)
        known = [self._seconds[larger]] if larger else []
        if smaller:
            known.append(self._seconds[smaller] * tokens / smaller)
        return min(known, default=0.0)
