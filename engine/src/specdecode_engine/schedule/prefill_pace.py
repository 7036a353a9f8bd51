"""How many prompt tokens a step computes while requests decode, and how prompts share them."""

import math
from collections.abc import Iterable, Sequence

from specdecode_engine.schedule.chunk_cost import ChunkCurve, ChunkLine

MIN_CONTEXT = 256
"""Tokens before a chunk; to attend to fewer is a small part of the time of a chunk."""
MIN_TOKENS = 16
"""So many are computed in every step whose time has no limit, whatever they cost."""
LONG_INTERVAL = 200
"""Steps from one chunk that exceeds the limit of a step's time to the next: 0.5 %."""
RETRY_INTERVAL = 1000
"""Steps until a size of chunks that did not fit is measured again: 0.1 %."""
KEPT = 0.95
"""Weight of what was measured before, when a decode step is measured."""


class PrefillPace:
    """Sizes chunks so that they delay running requests by a bounded number of decode steps.

    The time that a chunk adds to a step is fitted by fixed + slope · tokens (least squares, older
    chunks count less), apart for chunks that share the forward of a decode step and for those with
    a forward of their own, and for each octave of the tokens before a chunk, which it attends to.
    The largest chunk that adds at most `delay_steps` times the decode step of the same batch size
    is chosen. The fixed part is two thirds of a chunk's time at most, also where the chunk then
    adds more: smaller chunks would only pay it more often.

    Where the time of a step is limited, a chunk has as many tokens as were measured to fit, of 1,
    2, 4, …; the next larger size is measured once. Once in `LONG_INTERVAL` steps a chunk of
    `most_tokens` exceeds the limit, where chunks that fit would take more steps than that. A prompt
    thus waits `LONG_INTERVAL` steps at most for each `most_tokens` tokens that all prompts miss.

    Args:
        most_tokens: of a step, at least 1.
        delay_steps: 0 for no bound.
    """

    def __init__(self, most_tokens: int, delay_steps: float) -> None:
        self._most_tokens = most_tokens
        self._delay_steps = delay_steps
        # Of decode steps alone, by bits of their batch size and by draft steps.
        self._step_s: dict[tuple[int, int], float] = {}
        self._num_steps = 0  # of the latest of them
        # by whether a forward is shared, by octaves of the tokens before a chunk
        self._lines: dict[bool, dict[int, ChunkLine]] = {False: {}, True: {}}
        self._curves: dict[int, ChunkCurve] = {}  # by bits of the decoding requests; 0: own forward
        self._steps = self._next_long = 0
        self._next_retry = RETRY_INTERVAL

    def observe_step(self, batch_size: int, seconds: float, num_steps: int = 0) -> None:
        """Note the time of a step that only decodes, with so many draft steps."""
        key = batch_size.bit_length(), num_steps
        before_s = self._step_s.get(key, seconds)
        self._step_s[key] = KEPT * before_s + (1 - KEPT) * seconds
        self._num_steps = num_steps
        self._steps += 1

    def observe_chunk(
        self, tokens: int, seconds: float, decoding: int, num_steps: int = 0, context: int = 0
    ) -> None:
        """Note the time of a forward over chunks.

        Args:
            tokens: of all chunks.
            seconds: of the whole forward.
            decoding: requests that decode in the same forward.
            num_steps: draft steps of these.
            context: tokens before a chunk, the mean over all tokens of chunks.
        """
        self._steps += decoding > 0
        step_s = self._decode_s(decoding, num_steps) if decoding else 0.0
        if step_s is not None:
            added_s = max(seconds - step_s, 0.0)
            lines, octave = self._lines[decoding > 0], _octave(context)
            if octave not in lines:
                lines[octave] = lines[_nearest(lines, octave)].beginning() if lines else ChunkLine()
            lines[octave].observe(tokens, added_s)
            self._curves.setdefault(decoding.bit_length(), ChunkCurve()).observe(tokens, added_s)

    def tokens(
        self, decoding: int, room_s: float = math.inf, missing: int = 0, context: int = 0
    ) -> int:
        """Return how many prompt tokens a step may compute next to `decoding` requests.

        Args:
            room_s: seconds that they may add to a step whose time is limited.
            missing: tokens that all prompts still need; matters under a limit.
            context: tokens before the chunk of the oldest prompt.
        """
        usual = self._usual_tokens(decoding, context)
        if room_s == math.inf:
            return usual
        curve = self._curve(decoding)
        fitting = curve.tokens_within(room_s, usual)
        larger = 2 * fitting or 1
        if larger <= min(missing, usual):
            if self._steps >= self._next_retry:
                self._next_retry = self._steps + RETRY_INTERVAL
                curve.forget(larger)
            if not curve.is_measured(larger):
                return larger
        if fitting * LONG_INTERVAL < missing and self._steps >= self._next_long:
            self._next_long = self._steps + LONG_INTERVAL
            return self._most_tokens
        return fitting

    def added_s(self, tokens: int, decoding: int) -> float:
        """Return the seconds that a chunk adds to a decode step; 0 before one was measured."""
        return self._curve(decoding).seconds(tokens)

    def _usual_tokens(self, decoding: int, context: int) -> int:
        has_bound = decoding and self._delay_steps
        step_s = self._decode_s(decoding, self._num_steps) if has_bound else None
        lines = self._lines[True] or self._lines[False]
        if step_s is None or not lines:
            return self._most_tokens
        line = lines[_nearest(lines, _octave(context))]
        tokens = line.most_tokens(self._delay_steps * step_s, self._most_tokens)
        return min(max(tokens, MIN_TOKENS), self._most_tokens)

    def _curve(self, decoding: int) -> ChunkCurve:
        has_own_forward = bool(self._lines[False]) and not self._lines[True]
        key = 0 if has_own_forward else decoding.bit_length()
        return self._curves.setdefault(key, ChunkCurve())

    def _decode_s(self, batch_size: int, num_steps: int) -> float | None:
        """Return the time of a decode step of the nearest batch size and draft steps measured."""
        size = batch_size.bit_length()

        def distance(known: tuple[int, int]) -> tuple[int, int]:
            return abs(known[1] - num_steps), abs(known[0] - size)

        nearest = min(self._step_s, key=distance, default=None)
        return None if nearest is None else self._step_s[nearest]


def _octave(context: int) -> int:
    return max(context, MIN_CONTEXT).bit_length()


def _nearest(octaves: Iterable[int], octave: int) -> int:
    """Return the nearest octave, the longer one of two."""
    return min(octaves, key=lambda known: (abs(known - octave), -known))


def share_budget(missing: Sequence[int], budget: int) -> list[int]:
    """Return how many tokens of each prompt a step computes.

    The oldest prompt gets at least half of the budget and is never overtaken for long; the rest
    goes to the others, the shortest first. A short prompt therefore does not wait until long ones
    that came before it are computed.

    Args:
        missing: tokens that each prompt still needs, at least 1, oldest prompt first.
        budget: prompt tokens of the step.
    """
    shares = [0] * len(missing)
    if not missing:
        return shares
    shares[0] = min(missing[0], -(-budget // 2))
    left = budget - shares[0]
    for index in (*sorted(range(1, len(missing)), key=missing.__getitem__), 0):
        more = min(missing[index] - shares[index], left)
        shares[index] += more
        left -= more
    return shares
