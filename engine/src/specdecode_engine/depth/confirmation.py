"""When to leave a depth for a better one: once staying has cost as much as moving."""

from collections.abc import Sequence

# A better depth must promise this much more, and more while little is known.
LEAST_GAIN, DOUBT = 0.01, 0.3
# The same for a better depth without speculation, which no draft is to be slower than.
PLAIN_LEAST_GAIN, PLAIN_DOUBT = 0.003, 0.15
# Rounds of the gain that are given up before a move: small, as graphs of all depths stand ready.
SWITCH_COST_ROUNDS = 0.1


class Confirmation:
    """Adds up what staying has cost (ski rental): a great gain moves at once, a small one late.

    A gain within the doubt never moves, so noise between two nearly equal depths does not. What
    staying gains is taken off again, so batches that ask for one depth and another in turn settle.
    """

    def __init__(self) -> None:
        self._given_up = 0.0
        self._target = 0

    def confirms(
        self, candidates: Sequence[int], rates: Sequence[float], current: int, trials: float
    ) -> bool:
        """Say whether to go to the best of `rates`, estimated from `trials` drafts.

        `current` is the place of the depth that runs.
        """
        best = rates.index(max(rates))
        gain = rates[best] / rates[current] - 1.0
        if gain <= _doubt(candidates[best], trials):
            target = min(self._target, len(rates) - 1)
            self._given_up -= max(rates[current] / rates[target] - 1.0, LEAST_GAIN)
            self._given_up = max(self._given_up, 0.0)
            return False
        self._target = best
        self._given_up += gain
        if self._given_up < SWITCH_COST_ROUNDS:
            return False
        self._given_up = 0.0
        return True


def _doubt(num_steps: int, trials: float) -> float:
    """Return the gain that is not believed."""
    least, doubt = (LEAST_GAIN, DOUBT) if num_steps else (PLAIN_LEAST_GAIN, PLAIN_DOUBT)
    return least + float(doubt / (1.0 + trials) ** 0.5)
