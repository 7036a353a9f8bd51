"""What is known of the acceptance now, and of how it was before it changed last."""

from collections.abc import Sequence

from specdecode_engine.depth.change import Round
from specdecode_engine.depth.survival import Rates

# Nats by which what was known before may fit worse than a fresh start to be taken up again.
FITS = 5.0
# Nats by which the last rounds look more like it than like the present to turn back at once.
ALIKE = 4.0


class Regimes:
    """The present rates and the ones before.

    Loads come back: code after prose, a false alarm. If the rounds since a change look like what
    was known before the last one, that is taken up again with all its trials, deep positions
    included; else it is forgotten and the present takes its place.
    """

    def __init__(self, depth: int, lean_trials: float) -> None:
        self.now = Rates(depth, lean_trials)
        self._before: Rates | None = None
        self._likeness = 0.0  # of the last rounds to what was before, nats above the present

    def change(self, rounds: Sequence[Round]) -> None:
        """Turn to the rates that explain the rounds since a change."""
        self._likeness = 0.0
        fresh = self.now.copy()
        fresh.restart(rounds)
        before, self._before = self._before, self.now
        if before and before.likelihood(rounds) > fresh.likelihood(rounds) - FITS:
            for trials, successes in rounds:
                before.add(1.0, trials, successes)
            self.now = before
        else:
            self.now = fresh

    def recalls(self, counts: Round) -> bool:
        """Take in a round; turn back if the last ones look like what was known before."""
        if self._before is None:
            return False
        grown = self._before.likelihood([counts]) - self.now.likelihood([counts])
        self._likeness = max(self._likeness + grown, 0.0)
        if self._likeness < ALIKE:
            return False
        self._likeness = 0.0
        self.now, self._before = self._before, self.now
        return True

    def resize(self, depth: int) -> None:
        """Describe this many positions from now on."""
        self.now.resize(depth)
        if self._before:
            self._before.resize(depth)
