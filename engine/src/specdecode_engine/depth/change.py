"""Tells a change of the acceptance from its noise, and since when it lasts.

Page's cumulative sums (Biometrika 41, 1954) of the log-likelihood ratio of binomial counts against
counts whose odds are tilted: one sum for each of a small and a large tilt, up and down.
"""

from collections import deque
from collections.abc import Sequence

TILTS = (0.4, -0.4, 1.4, -1.4)  # of the log-odds
_POWERS = tuple(
    (place, tilt, tilt**2 / 2.0, tilt**3 / 6.0, tilt**4 / 24.0) for place, tilt in enumerate(TILTS)
)  # what cumulants are weighed by
ALARM = 8.0  # nats
LONGEST = 256  # rounds
MOST_SEEN = 4.0

Round = tuple[Sequence[int], Sequence[int]]  # trials, successes


class ChangeDetector:
    """Compares each round with what was expected of it; quiet as long as that explains it.

    Requests that share a fate make counts vary more than independent ones would; the sums are
    scaled by the dispersion that was seen, so such a load does not look like change.
    """

    def __init__(self) -> None:
        self._sums = [0.0] * len(TILTS)
        self._begun = [0] * len(TILTS)
        self._rounds: deque[Round] = deque(maxlen=LONGEST)
        self._number = 0
        self._dispersion = 1.0

    def since_change(
        self, rates: Sequence[float], trials: Sequence[int], successes: Sequence[int]
    ) -> list[Round]:
        """Take in a round; return the rounds since a change if there was one, else nothing."""
        self._rounds.append((trials, successes))
        self._number += 1
        surplus = second = third = fourth = 0.0  # what was accepted above the mean; cumulants
        for rate, count, accepted in zip(rates, trials, successes, strict=False):
            surplus += accepted - count * rate
            spread = rate * (1.0 - rate)
            variance = count * spread
            second += variance
            third += variance * (1.0 - 2.0 * rate)
            fourth += variance * (1.0 - 6.0 * spread)
        scale, sums = 1.0 / self._disperse(surplus, second), self._sums
        for place, first, square, cube, power in _POWERS:
            ratio = first * surplus - square * second - cube * third - power * fourth
            grown = sums[place] + scale * ratio
            if grown > ALARM:
                rounds = self._number - self._begun[place]
                self.restart()
                return list(self._rounds)[-rounds:]
            if grown > 0.0:
                sums[place] = grown
            else:
                sums[place] = 0.0
                self._begun[place] = self._number
        return []

    @property
    def evidence_of_rise(self) -> float:
        """Nats that speak for better acceptance than expected, as yet."""
        return max(total for total, tilt in zip(self._sums, TILTS, strict=True) if tilt > 0.0)

    def restart(self) -> None:
        """Forget what has been summed up."""
        self._sums = [0.0] * len(TILTS)
        self._begun = [self._number] * len(TILTS)

    def _disperse(self, surplus: float, variance: float) -> float:
        if variance > 0.0:
            seen = min(surplus * surplus / variance, MOST_SEEN)
            self._dispersion += 0.02 * (seen - self._dispersion)
        return max(self._dispersion, 1.0)
