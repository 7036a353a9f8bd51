"""When to leave a depth for a better one: once staying has cost as much as moving."""

# A better depth must promise this much more, and more while little is known.
LEAST_GAIN = 0.01
DOUBT = 0.3
# Rounds of the gain that are given up before a move: small, as graphs of all depths stand ready.
SWITCH_COST_ROUNDS = 0.1


class Confirmation:
    """Adds up what staying has cost (ski rental): a great gain moves at once, a small one late.

    A gain within the doubt never moves, so noise between two nearly equal depths does not.
    """

    def __init__(self) -> None:
        self._given_up = 0.0

    def confirms(self, gain: float, trials: float) -> bool:
        """Take in a round's relative gain of the best depth, estimated from `trials` drafts."""
        if gain <= LEAST_GAIN + DOUBT / (1.0 + trials) ** 0.5:
            self._given_up = max(0.0, self._given_up - LEAST_GAIN)
            return False
        self._given_up += gain
        if self._given_up < SWITCH_COST_ROUNDS:
            return False
        self._given_up = 0.0
        return True
