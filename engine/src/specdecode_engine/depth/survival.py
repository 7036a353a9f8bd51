"""How likely a draft is accepted, position by position, in each range and over all of them."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

# Trials before the first round: one token in two is accepted.
PRIOR_RATE, PRIOR_TRIALS = 0.5, 1.0

# First-position trials of before a change that stay to steady what came after it.
KEPT_TRIALS = 6.0


class Rates:
    """Decayed trials and successes of each position, given that the one before was accepted.

    A count of accepted tokens is censored by the depth that ran; these rates are not: a position
    that was not drafted has no trial. A position leans on the one before it with the weight of
    `lean_trials`, so that depths never tried are extrapolated and sparse ones are steadied.
    """

    __slots__ = ("_conditional", "_lean_trials", "successes", "trials")

    def __init__(self, depth: int, lean_trials: float) -> None:
        self.trials = [0.0] * depth
        self.successes = [0.0] * depth
        self._lean_trials = lean_trials
        self._conditional: list[float] = []  # as estimated last, until something changes

    def add(self, keep: float, trials: Sequence[int], successes: Sequence[int]) -> None:
        """Let the past fade by `keep` and count one round."""
        self._conditional = []
        self.trials = _faded(self.trials, keep, trials)
        self.successes = _faded(self.successes, keep, successes)

    def restart(self, rounds: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
        """Forget nearly everything but these rounds.

        Rounds that were picked out for being unlike the others exaggerate, so something stays.
        """
        self.fade(KEPT_TRIALS)
        for trials, successes in rounds:
            self.add(1.0, trials, successes)

    def copy(self) -> "Rates":
        """Return the same counts, apart."""
        twin = Rates(len(self.trials), self._lean_trials)
        twin.trials, twin.successes = list(self.trials), list(self.successes)
        return twin

    def resize(self, depth: int) -> None:
        """Describe this many positions from now on."""
        self._conditional = []
        missing = [0.0] * max(depth - len(self.trials), 0)
        self.trials = self.trials[:depth] + missing
        self.successes = self.successes[:depth] + missing

    def fade(self, trials: float) -> None:
        """Let what is known weigh no more than this many trials."""
        if self.trials[0] > trials:
            keep = trials / self.trials[0]
            self._conditional = []
            self.trials = [count * keep for count in self.trials]
            self.successes = [count * keep for count in self.successes]

    def likelihood(self, rounds: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
        """Log-likelihood (nats) of what these rounds accepted."""
        total = 0.0
        for place, rate in enumerate(self.conditional()):
            trials = sum(counts[place] for counts, _ in rounds if place < len(counts))
            accepted = sum(counts[place] for _, counts in rounds if place < len(counts))
            total += accepted * math.log(rate) + (trials - accepted) * math.log(1.0 - rate)
        return total

    def conditional(self) -> list[float]:
        """Estimate the rates, each leaning on the one before."""
        if self._conditional:
            return self._conditional
        lean = self._lean_trials
        rate = (self.successes[0] + PRIOR_RATE * PRIOR_TRIALS) / (self.trials[0] + PRIOR_TRIALS)
        rates = [rate]
        for successes, trials in zip(self.successes[1:], self.trials[1:], strict=True):
            rate = (successes + lean * rate) / (trials + lean)
            rates.append(rate)
        self._conditional = rates
        return rates

    def leaning_on(self, wider: Sequence[float], trials: float) -> list[float]:
        """Estimate the rates, each leaning on those of a wider population."""
        return [
            (own + trials * rate) / (count + trials)
            for own, count, rate in zip(self.successes, self.trials, wider, strict=True)
        ]


@lru_cache(maxsize=256)  # asked for twice in every round, and small batches repeat themselves
def count_round(
    accepted: tuple[int, ...], num_steps: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return trials and successes of positions 1 … `num_steps` (at most 255) in one round."""
    count = bytes(accepted).count  # in C, so a large batch takes hardly longer than a small one
    left = len(accepted)
    reached = [left]
    for length in range(num_steps):
        left -= count(length)
        reached.append(left)
    return tuple(reached[:-1]), tuple(reached[1:])


def _faded(counts: Sequence[float], keep: float, seen: Sequence[int]) -> list[float]:
    """Let counts fade and add those of the first positions."""
    faded = [count * keep for count in counts]
    for place, count in enumerate(seen):
        faded[place] += count
    return faded


def expected_tokens(rates: Iterable[float]) -> list[float]:
    """Tokens that a request emits in a round of depth 0, 1, …: 1 + Σ Π rates."""
    tokens = survival = 1.0
    expected = [1.0]
    for rate in rates:
        survival *= rate
        tokens += survival
        expected.append(tokens)
    return expected
