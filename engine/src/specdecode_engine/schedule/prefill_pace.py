"""How many prompt tokens a step computes while requests decode, by what prompts have cost."""

import math

MIN_TOKENS = 16
"""So many are computed in every step, whatever they cost: prompts are never stuck."""
MIN_TOKENS_WITHIN_LIMIT = 4
"""Of a step whose time is limited, if no more than that fit: below, the limit is missed instead."""
KEPT = 0.95
"""Weight of what was measured before, when a chunk or a decode step is measured."""
MIN_SPREAD = 0.05
"""Standard deviation of the sizes of chunks, relative to their mean, that shows a slope."""


class PrefillPace:
    """Sizes chunks so that they delay running requests by a bounded number of decode steps.

    The time that a chunk adds to a step is fitted by fixed + slope · tokens (least squares, older
    chunks count less), apart for chunks that share the forward of a decode step and for those with
    a forward of their own. The largest chunk that adds at most `delay_steps` times the decode step
    of the same batch size is chosen. The fixed part is two thirds of a chunk's time at most, also
    where the chunk then adds more: smaller chunks would only pay it more often.

    Args:
        most_tokens: of a step, at least 1.
        delay_steps: 0 for no bound.
    """

    def __init__(self, most_tokens: int, delay_steps: float) -> None:
        self._most_tokens = most_tokens
        self._delay_steps = delay_steps
        self._step_s: dict[int, float] = {}  # of decode steps alone, by bits of their batch size
        self._chunks = {False: _ChunkCost(), True: _ChunkCost()}  # by whether a forward is shared

    def observe_step(self, batch_size: int, seconds: float) -> None:
        """Note the time of a step that only decodes."""
        size = batch_size.bit_length()
        before_s = self._step_s.get(size, seconds)
        self._step_s[size] = KEPT * before_s + (1 - KEPT) * seconds

    def observe_chunk(self, tokens: int, seconds: float, decoding: int) -> None:
        """Note the time of a forward over chunks.

        Args:
            tokens: of all chunks.
            seconds: of the whole forward.
            decoding: requests that decode in the same forward.
        """
        step_s = self._decode_s(decoding) if decoding else 0.0
        if step_s is not None:
            self._chunks[decoding > 0].observe(tokens, max(seconds - step_s, 0.0))

    def tokens(self, decoding: int, room_s: float = math.inf) -> int:
        """Return how many prompt tokens a step may compute next to `decoding` requests.

        Args:
            room_s: that they may add to a step whose time is limited.
        """
        step_s = self._decode_s(decoding) if decoding and self._delay_steps else None
        delay_s = math.inf if step_s is None else self._delay_steps * step_s
        cost, most = self._cost, self._most_tokens
        if min(delay_s, room_s) == math.inf or not cost.is_known:
            return most
        usual = min(max(cost.most_tokens(delay_s, most), MIN_TOKENS), most)
        fitting = cost.tokens_within(room_s, usual)
        least = min(MIN_TOKENS_WITHIN_LIMIT, most)
        return fitting if fitting >= least else min(MIN_TOKENS, most)

    def added_s(self, tokens: int) -> float:
        """Return the seconds that a chunk adds to a decode step; 0 before one was measured."""
        return self._cost.seconds(tokens) if self._cost.is_known else 0.0

    @property
    def _cost(self) -> "_ChunkCost":
        return self._chunks[True] if self._chunks[True].is_known else self._chunks[False]

    def _decode_s(self, batch_size: int) -> float | None:
        """Return the time of a decode step of the nearest batch size that was measured."""
        size = batch_size.bit_length()
        nearest = min(self._step_s, key=lambda known: abs(known - size), default=None)
        return None if nearest is None else self._step_s[nearest]


class _ChunkCost:
    """Fixed and proportional part of the seconds that a chunk adds to a step."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._squares = 0.0
        self._seconds = self._products = 0.0
        self._slope: float | None = None

    @property
    def is_known(self) -> bool:
        return self._weight > 0

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

    def seconds(self, tokens: int) -> float:
        fixed_s, slope = self._line()
        return fixed_s + slope * tokens

    def most_tokens(self, limit_s: float, at_most: int) -> int:
        """Return the tokens of the largest chunk within the limit, or of one two thirds fixed."""
        return self.tokens_within(max(limit_s, 1.5 * self._line()[0]), at_most)

    def tokens_within(self, limit_s: float, at_most: int) -> int:
        """Return the tokens of the largest chunk within the limit; 0 if there is none."""
        fixed_s, slope = self._line()
        seconds_left = max(limit_s - fixed_s, 0.0)
        return at_most if seconds_left >= slope * at_most else int(seconds_left / slope)

    def _line(self) -> tuple[float, float]:
        """Return the fixed seconds of a chunk, and the seconds of a token; neither is negative."""
        mean, seconds = self._tokens / self._weight, self._seconds / self._weight
        proportional = seconds / mean
        slope = proportional if self._slope is None else min(max(self._slope, 0.0), proportional)
        return seconds - slope * mean, slope
