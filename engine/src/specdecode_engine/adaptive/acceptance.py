"""Acceptance rates by draft position, and when they change.

The rate of a position is conditional: given that the position before was accepted. A mean of
accepted tokens is censored by the number of draft steps that ran; conditional rates are not, as a
position that was not drafted has no trial.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import log, log1p

# Largest estimate: of deep positions that were always accepted the sums round to 1.
MOST_RATE = 1.0 - 1e-9
# Prior acceptance rate before the first draft, with the weight of one trial.
PRIOR_RATE = 0.5
# Trials: the weight of the previous position in a position's estimate, and what a change leaves of
# the past, as the steps that led to an alarm were selected for being extreme.
PRIOR_TRIALS = 6.0
# Steps after which what was learned counts half as much, roughly, and that a change may go back.
MEMORY_STEPS = 512
# Nats of evidence that count as a change: with independent drafts once in e^8 steps by chance.
ALARM = 8.0
# Nats by which recent steps must look more like the rates before the last change than like the
# present ones to take those up again.
RECALL = 5.0
# Shifts of the log-odds that are tested for: small ones, and large ones that few drafts show.
TILTS = (0.5, -0.5, 2.0, -2.0)
_MUCH_BETTER = 2  # index of the large shift upwards
_TILTED_ODDS = tuple((tilt, math.expm1(tilt)) for tilt in TILTS)

Counts = tuple[Sequence[int], Sequence[int]]  # trials and accepted tokens by position


class AcceptanceRates:
    """Decayed trials and accepted tokens of each position.

    A position's estimate is shrunk towards the previous position's: positions that were never
    drafted are extrapolated, and rarely drafted positions have less variance.
    """

    __slots__ = ("_rates", "accepted", "trials")

    def __init__(self, positions: int) -> None:
        self.trials = [0.0] * positions
        self.accepted = [0.0] * positions
        self._rates: list[float] = []  # the last estimate, until something changes

    def add(self, counts: Counts, keep: float = 1.0) -> None:
        """Decay the past by `keep` and count one step."""
        self._rates, places = [], len(counts[0])
        trials, accepted = self.trials, self.accepted
        for place, (tried, hits) in enumerate(zip(*counts, strict=True)):
            trials[place] = trials[place] * keep + tried
            accepted[place] = accepted[place] * keep + hits
        for place in range(places, len(trials)):
            trials[place] *= keep
            accepted[place] *= keep

    def restarted(self, steps: Sequence[Counts]) -> "AcceptanceRates":
        """Return rates estimated from these steps and `PRIOR_TRIALS` trials of the past."""
        fresh = AcceptanceRates(len(self.trials))
        keep = min(PRIOR_TRIALS / self.trials[0], 1.0) if self.trials[0] else 1.0
        fresh.trials = [count * keep for count in self.trials]
        fresh.accepted = [count * keep for count in self.accepted]
        for counts in steps:
            fresh.add(counts)
        return fresh

    def resize(self, positions: int) -> None:
        """Shorten to this many positions, or add positions without trials."""
        self._rates = []
        missing = [0.0] * max(positions - len(self.trials), 0)
        self.trials = self.trials[:positions] + missing
        self.accepted = self.accepted[:positions] + missing

    def rates(self) -> list[float]:
        """Estimate the conditional rate of every position; always between 0 and 1, exclusive."""
        if self._rates:
            return self._rates
        rate, weight = PRIOR_RATE, 1.0  # of the prior
        for accepted, trials in zip(self.accepted, self.trials, strict=True):
            rate = (accepted + weight * rate) / (trials + weight)
            if rate > MOST_RATE:
                rate = MOST_RATE
            self._rates.append(rate)
            weight = PRIOR_TRIALS
        return self._rates


class ChangeDetector:
    """Page's cumulative sums (Biometrika 41, 1954) of log-likelihood ratios.

    One sum for better and one for worse acceptance: binomial counts against counts whose odds are
    shifted. A sum that reaches `ALARM` reports a change and the step at which it began.
    """

    def __init__(self) -> None:
        self._steps: deque[Counts] = deque(maxlen=MEMORY_STEPS)
        self.restart()

    def since_change(self, rates: Sequence[float], counts: Counts) -> list[Counts]:
        """Add a step; return the steps since a change if there was one, else nothing."""
        self._steps.append(counts)
        accepted, sums, lengths = sum(counts[1]), self._sums, self._lengths
        pairs = [(rate, tried) for rate, tried in zip(rates, counts[0], strict=False) if tried]
        most, length = ALARM, 0
        for index, (tilt, odds) in enumerate(_TILTED_ODDS):
            total = sums[index] + tilt * accepted
            for rate, tried in pairs:
                total -= tried * log1p(rate * odds)
            if total <= 0.0:
                sums[index] = lengths[index] = 0
                continue
            sums[index] = total
            lengths[index] += 1
            if total > most:  # a small shift may begin long before a large one
                most, length = total, lengths[index]
        if length:
            self.restart()
        return list(self._steps)[-length:] if length else []

    def is_rising(self) -> bool:
        """Return whether the latest steps look like much better acceptance."""
        return self._sums[_MUCH_BETTER] > 0.0

    def restart(self) -> None:
        self._sums: list[float] = [0.0] * len(TILTS)
        self._lengths = [0] * len(TILTS)  # steps that contribute to each sum


class AcceptanceModel:
    """The present rates, and those before the last change.

    Loads come back (code after prose, a false alarm). When recent steps look like what was known
    before the last change, those rates are taken up again with all their trials, those of deep
    positions included.
    """

    def __init__(self, positions: int) -> None:
        self.now = AcceptanceRates(positions)
        self._before: AcceptanceRates | None = None
        self._recall_evidence = 0.0  # for the rates before over the present ones, in nats
        self.detector = ChangeDetector()

    def learn(self, counts: Counts, is_probe: bool) -> bool:
        """Add a step; return whether acceptance has changed.

        Only probes may restore the previous rates: while drafts run, a change is detected as soon,
        and fluctuations that all requests share would swap the rates repeatedly.
        """
        changed = self.detector.since_change(self.now.rates(), counts)
        recalled = is_probe and self._recall(counts)
        self.now.add(counts, 1.0 - 1.0 / MEMORY_STEPS)
        if changed:
            self._change(changed)
        return recalled or bool(changed)

    def resize(self, positions: int) -> None:
        self.now.resize(positions)
        if self._before:
            self._before.resize(positions)

    def _recall(self, counts: Counts) -> bool:
        if self._before is None:
            return False
        evidence = log_likelihood_ratio([counts], self._before.rates(), self.now.rates())
        self._recall_evidence = max(self._recall_evidence + evidence, 0.0)
        if self._recall_evidence < RECALL:
            return False
        self._recall_evidence = 0.0
        self.detector.restart()
        self.now, self._before = self._before, self.now
        return True

    def _change(self, steps: Sequence[Counts]) -> None:
        """Continue with the rates that explain the steps since a change."""
        self._recall_evidence = 0.0
        fresh = self.now.restarted(steps)
        before, self._before = self._before, self.now
        if before and log_likelihood_ratio(steps, before.rates(), fresh.rates()) > -RECALL:
            for counts in steps:
                before.add(counts)
            fresh = before
        self.now = fresh


def log_likelihood_ratio(
    steps: Sequence[Counts], rates: Sequence[float], others: Sequence[float]
) -> float:
    """Return the log-likelihood ratio of these steps under `rates` and `others`, in nats."""
    total = 0.0
    for trials, accepted in steps:
        for rate, other, tried, hits in zip(rates, others, trials, accepted, strict=False):
            total += hits * log(rate / other) + (tried - hits) * log((1.0 - rate) / (1.0 - other))
    return total


@lru_cache(maxsize=MEMORY_STEPS)  # called twice per step, and small batches repeat themselves
def count_by_position(
    accepted: tuple[int, ...], num_steps: int, partial: tuple[tuple[int, int], ...] = ()
) -> Counts:
    """Return trials and accepted tokens of positions 1 … `num_steps` (at most 255) in one step.

    Args:
        partial: accepted and drafted positions of requests for which fewer were drafted; a
            position that was not drafted has no trial.
    """
    count = bytes(accepted).count  # in C, so that a large batch hardly takes longer
    left = len(accepted)
    reached = [left]
    for length in range(num_steps):
        left -= count(length)
        reached.append(left)
    trials, hits = reached[:-1], reached[1:]
    for length, drafted in partial:
        for place in range(min(length + 1, drafted)):
            trials[place] += 1
            hits[place] += place < length
    return tuple(trials), tuple(hits)


def expected_tokens(rates: Iterable[float], answer_tokens: float = math.inf) -> list[float]:
    """Expected tokens of a request in a step of 0, 1, … draft steps: 1 + Σ Π rates.

    An answer's last step decodes tokens beyond its end. Of X tokens in a step, these are
    (E[X²] / E[X] - 1) / 2 on average (renewal theory), so that L tokens need the steps of L + that.

    Args:
        answer_tokens: L, the mean of the tokens that an answer decodes.
    """
    tokens = squares = survival = 1.0
    expected = [1.0]
    for place, rate in enumerate(rates, start=1):
        survival *= rate
        tokens += survival
        squares += (2 * place + 1) * survival
        beyond = (squares / tokens - 1.0) / 2.0
        expected.append(tokens / (1.0 + beyond / answer_tokens))
    return expected
